/* The model of gpt/model.py, one token at a time, with its tokenizers and sampling, independent of the page.

   Weights, keys and values are fp32, everything else is double. Shapes as in gpt/model.py: C = dim, D = C / heads. */

/** out[r] = w[start + r * stride ...] . x for each of `rows` rows of `x.length` weights: four at a time, one load of x. */
function products(out, x, w, start, stride, rows) {
  const cols = x.length;
  let r = 0;
  for (; r + 3 < rows; r += 4) {
    const i = start + r * stride, j = i + stride, k = j + stride, l = k + stride;
    let a = 0, b = 0, c = 0, d = 0;
    for (let n = 0; n < cols; n++) {
      const value = x[n];
      a += value * w[i + n];
      b += value * w[j + n];
      c += value * w[k + n];
      d += value * w[l + n];
    }
    out[r] = a;
    out[r + 1] = b;
    out[r + 2] = c;
    out[r + 3] = d;
  }
  for (; r < rows; r++) {
    const i = start + r * stride;
    let a = 0;
    for (let n = 0; n < cols; n++) a += x[n] * w[i + n];
    out[r] = a;
  }
}

/** out += the rows of w times their x, for the rows with x != 0: four at a time, one pass over out. */
function addRows(out, x, count, w, start, stride) {
  const cols = out.length;
  let waiting = 0, a = 0, b = 0, c = 0, i = 0, j = 0, k = 0;
  for (let r = 0; r < count; r++) {
    const d = x[r], l = start + r * stride;
    if (d === 0) continue;
    if (waiting === 0) { a = d; i = l; waiting = 1; continue; }
    if (waiting === 1) { b = d; j = l; waiting = 2; continue; }
    if (waiting === 2) { c = d; k = l; waiting = 3; continue; }
    for (let n = 0; n < cols; n++) out[n] += a * w[i + n] + b * w[j + n] + c * w[k + n] + d * w[l + n];
    waiting = 0;
  }
  if (waiting > 0) for (let n = 0; n < cols; n++) out[n] += a * w[i + n];
  if (waiting > 1) for (let n = 0; n < cols; n++) out[n] += b * w[j + n];
  if (waiting > 2) for (let n = 0; n < cols; n++) out[n] += c * w[k + n];
}

/** Softmax of the first `count` values, in place. */
function softmax(values, count) {
  let most = -Infinity, sum = 0;
  for (let i = 0; i < count; i++) most = Math.max(most, values[i]);
  for (let i = 0; i < count; i++) sum += values[i] = Math.exp(values[i] - most);
  for (let i = 0; i < count; i++) values[i] /= sum;
}

/** The error function to double precision, from its series of positive terms (Abramowitz and Stegun, 7.1.6). */
function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x);
  let term = x, sum = x;
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) sum += term *= (2 * x * x) / (2 * n + 1);
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

const ACTIVATIONS = {
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  relu2: (x) => (x > 0 ? x * x : 0),
};

/** Rows become columns: (rows, cols) -> (cols, rows). */
function transposed(w, rows, cols) {
  const out = new Float32Array(w.length);
  for (let r = 0; r < rows; r++) for (let c = 0; c < cols; c++) out[c * rows + r] = w[r * cols + c];
  return out;
}

/** A GPT that reads a text token by token.

   A text longer than the context follows the window rule of gpt/inference/decoder.py: with learned or sinusoidal
   positions, when all are full, the last half of the tokens is read again from position 0; other positions have no
   limit. Attention covers the last `window` tokens: the context, or config.window if that is shorter. */
class GPT {
  /** config: as ModelConfig; vocabulary: its size; weights: name in the state dict -> Float32Array. */
  constructor(config, vocabulary, weights) {
    const { layers, dim, heads, context } = config;
    Object.assign(this, { config, weights });
    this.absolute = ["learned", "sinusoidal"].includes(config.positions);
    this.window = Math.min(config.window ?? context, context);
    // Keys are contiguous, so that loops over them need no wrap-around; when the slots are full, the oldest third is
    // dropped. Queries are stored to show the attention of earlier tokens, too.
    this.slots = this.absolute ? Math.min(context, 3 * this.window) : 3 * this.window;
    this.blocks = Array.from({ length: layers }, (_, i) => {
      const block = {};
      for (const name in weights)
        if (name.startsWith(`blocks.${i}.`)) block[name.slice(`blocks.${i}.`.length)] = weights[name];
      // Most outputs of relu2 are 0: transposed, their weights are never read.
      block["mlp.down.weight"] = transposed(block["mlp.down.weight"], dim, 4 * dim);
      for (const name of ["q", "k", "v"]) block[name] = new Float32Array(this.slots * dim);
      return { ...block, moved: new Float64Array(dim), recent: [] };
    });
    const vector = (length) => new Float64Array(length);
    this.x = vector(dim);
    this.normed = vector(dim);
    this.qkv = vector(3 * dim);
    this.queries = Array.from({ length: heads }, (_, h) => this.qkv.subarray((h * dim) / heads, ((h + 1) * dim) / heads));
    this.mixed = vector(dim);
    this.mixedHeads = Array.from({ length: heads }, (_, h) => this.mixed.subarray((h * dim) / heads, ((h + 1) * dim) / heads));
    this.scores = vector(this.window);
    this.branch = vector(dim);
    this.hidden = vector(4 * dim);
    this.logits = vector(vocabulary);
    const size = dim / heads;
    const rotated = config.key_offset ? Math.floor(size / 2) : size;
    this.frequencies = config.positions === "rotary"
      ? Array.from({ length: rotated / 2 }, (_, i) => 10000 ** ((-2 * i) / rotated))
      : [];
    this.cos = vector(this.frequencies.length);
    this.sin = vector(this.frequencies.length);
    this.slopes = config.positions === "alibi" ? alibiSlopes(heads) : null;
    this.reset();
  }

  /** Forget the text. */
  reset() {
    this.tokens = [];
    this.begin = 0; // index in the text of position 0
    this.origin = 0; // index in the text of slot 0
  }

  /** Read one more token. */
  read(token) {
    const { context } = this.config;
    const last = this.tokens.push(token) - 1;
    if (!this.absolute || last - this.begin < context) return this.encode(last);
    this.begin = this.origin = last - Math.floor(context / 2);
    for (let index = this.begin; index <= last; index++) this.encode(index);
  }

  /** Logits of the token that follows the text; the array is reused. */
  predict() {
    const { weights, config } = this;
    this.norm(this.normed, weights["norm.weight"], weights["norm.bias"]);
    const head = weights[config.tied ? "embedding.weight" : "head.weight"];
    products(this.logits, this.normed, head, 0, config.dim, this.logits.length);
    return this.logits;
  }

  /** The attention weights of the token at an index, from index `from` to its own; null if they are no longer stored. */
  attention(layer, head, index) {
    const slot = index - this.origin;
    const first = this.first(slot);
    if (slot < 0 || index >= this.tokens.length || (first === 0 && this.origin > this.begin)) return null;
    const { dim, heads } = this.config;
    const block = this.blocks[layer], size = dim / heads, start = slot * dim + head * size;
    const weights = new Float64Array(slot - first + 1);
    this.attend(weights, block.q.subarray(start, start + size), block.k, first, slot, head);
    return { from: this.origin + first, weights };
  }

  /** The first slot that a slot attends to. */
  first(slot) {
    return Math.max(0, slot - this.window + 1);
  }

  /** Compute the token at an index of the text: store its keys and values in a slot, leave the residual stream in x. */
  encode(index) {
    const { config, weights, x, normed, branch, hidden, window } = this;
    const { dim } = config;
    if (index - this.origin === this.slots) {
      for (const block of this.blocks) for (const name of ["q", "k", "v"]) block[name].copyWithin(0, window * dim);
      this.origin += window;
    }
    const slot = index - this.origin, position = index - this.begin;
    const embedding = weights["embedding.weight"];
    for (let c = 0, row = this.tokens[index] * dim; c < dim; c++) x[c] = embedding[row + c];
    if (config.token_shift && slot > 0) {
      const shift = weights["shift"];
      for (let c = 0, row = this.tokens[index - 1] * dim; c < dim; c++) x[c] += shift[c] * embedding[row + c];
    }
    this.frequencies.forEach((frequency, i) => { // fp32, as the tables of gpt/positions.py
      this.cos[i] = Math.fround(Math.cos(position * frequency));
      this.sin[i] = Math.fround(Math.sin(position * frequency));
    });
    if (config.positions === "learned") {
      const learned = weights["position_embedding.weight"];
      for (let c = 0; c < dim; c++) x[c] += learned[position * dim + c];
    }
    if (config.positions === "sinusoidal")
      for (let c = 0; c < dim; c++) {
        const angle = position * 10000 ** (-(c - (c % 2)) / dim);
        x[c] += Math.fround(c % 2 ? Math.cos(angle) : Math.sin(angle)) / Math.sqrt(dim);
      }
    const act = ACTIVATIONS[config.activation];
    for (const block of this.blocks) {
      this.norm(normed, block["norm1.weight"], block["norm1.bias"]);
      if (config.conv_taps > 1) this.convolve(block, slot);
      this.mix(block, slot);
      products(branch, this.mixed, block["attention.proj.weight"], 0, dim, dim);
      add(x, branch);
      add(x, block["attention.proj.bias"]);

      this.norm(normed, block["norm2.weight"], block["norm2.bias"]);
      products(hidden, normed, block["mlp.up.weight"], 0, dim, 4 * dim);
      add(hidden, block["mlp.up.bias"]);
      for (let n = 0; n < hidden.length; n++) hidden[n] = act(hidden[n]);
      addRows(x, hidden, hidden.length, block["mlp.down.weight"], 0, dim);
      add(x, block["mlp.down.bias"]);
    }
  }

  /** out = LayerNorm or RMSNorm of x. */
  norm(out, weight, bias) {
    const { x } = this, size = x.length;
    let mean = 0, square = 0;
    if (this.config.norm === "layernorm") {
      for (let c = 0; c < size; c++) mean += x[c] / size;
    }
    for (let c = 0; c < size; c++) square += (x[c] - mean) ** 2;
    const scale = 1 / Math.sqrt(square / size + 1e-5);
    for (let c = 0; c < size; c++) out[c] = (x[c] - mean) * scale * weight[c];
    add(out, bias);
  }

  /** The convolution on attention's input: normed += each tap times `normed` of an earlier slot. */
  convolve(block, slot) {
    const { normed } = this, { recent } = block; // the newest first
    const own = normed.slice();
    if (slot === 0) recent.length = 0;
    recent.forEach((earlier, tap) => {
      const factors = block[`attention.taps.${tap}`];
      for (let c = 0; c < own.length; c++) normed[c] += factors[c] * earlier[c];
    });
    recent.unshift(own);
    recent.length = Math.min(recent.length, this.config.conv_taps - 1);
  }

  /** Attention of all heads at one slot, up to the projection: from `normed` to `mixed`. */
  mix(block, slot) {
    const { config, qkv, mixed, scores } = this;
    const { dim, heads } = config;
    const size = dim / heads;
    products(qkv, this.normed, block["attention.qkv.weight"], 0, dim, 3 * dim);
    add(qkv, block["attention.qkv.bias"]);
    for (let start = 0; start < 2 * dim; start += size) { // each head of the queries, then of the keys
      if (config.qk_norm) unitRms(qkv, start, size);
      rotate(qkv, start, this.cos, this.sin);
    }
    const row = slot * dim;
    const own = config.key_offset ? size - Math.floor(size / 2) : size; // channels of a key from its own position
    for (let c = 0; c < dim; c++) {
      const key = qkv[dim + c];
      block.q[row + c] = qkv[c];
      block.k[row + c] = c % size < own ? key : slot > 0 ? block.moved[c] : 0;
      block.v[row + c] = qkv[2 * dim + c];
      block.moved[c] = key;
    }
    const first = this.first(slot);
    mixed.fill(0);
    for (let h = 0; h < heads; h++) {
      this.attend(scores, this.queries[h], block.k, first, slot, h);
      addRows(this.mixedHeads[h], scores, slot - first + 1, block.v, first * dim + h * size, dim);
    }
  }

  /** weights = softmax(q k / sqrt(D) - slope * distance) over the slots from first to last, of one head. */
  attend(weights, query, keys, first, last, head) {
    const { dim, heads } = this.config;
    const size = dim / heads, count = last - first + 1;
    products(weights, query, keys, first * dim + head * size, dim, count);
    for (let s = 0; s < count; s++) weights[s] /= Math.sqrt(size);
    if (this.slopes) for (let s = 0; s < count; s++) weights[s] -= this.slopes[head] * (count - 1 - s);
    softmax(weights, count);
  }
}

/** out += what, which may be missing. */
function add(out, what) {
  if (what) for (let n = 0; n < out.length; n++) out[n] += what[n];
}

/** Divide `size` values from `start` by their root mean square. */
function unitRms(values, start, size) {
  let square = 0;
  for (let n = start; n < start + size; n++) square += values[n] * values[n];
  const scale = 1 / Math.sqrt(square / size + 2 ** -23); // the epsilon of rms_norm in torch: that of fp32
  for (let n = start; n < start + size; n++) values[n] *= scale;
}

/** Rotate the pairs (n, n + half) from `start`, as gpt/attention.py does. */
function rotate(values, start, cos, sin) {
  const half = cos.length;
  for (let i = 0, n = start; i < half; i++, n++) {
    const a = values[n], b = values[n + half];
    values[n] = a * cos[i] - b * sin[i];
    values[n + half] = a * sin[i] + b * cos[i];
  }
}

/** By how much the scores of each head fall with distance, as in gpt/positions.py. */
function alibiSlopes(heads) {
  const below = 2 ** Math.floor(Math.log2(heads)); // the largest power of two up to heads
  const exponent = (h) => (h < below ? (8 * (h + 1)) / below : (4 * (2 * (h - below) + 1)) / below);
  return Float32Array.from({ length: heads }, (_, h) => 2 ** -exponent(h));
}

/** The distribution to sample from: temperature 0 is greedy, topK 0 keeps all. */
function probabilities(logits, temperature, topK) {
  const out = new Float64Array(logits.length);
  let best = 0;
  for (let i = 1; i < out.length; i++) if (logits[i] > logits[best]) best = i;
  if (temperature === 0) {
    out[best] = 1;
    return out;
  }
  // The largest becomes 0 first, so that a tiny temperature gives no infinity / infinity.
  for (let i = 0; i < out.length; i++) out[i] = (logits[i] - logits[best]) / temperature;
  if (topK > 0) for (const token of ranked(logits).subarray(topK)) out[token] = -Infinity;
  softmax(out, out.length);
  return out;
}

/** Tokens from the largest value to the smallest. */
function ranked(values) {
  return Uint32Array.from(values.keys()).sort((a, b) => values[b] - values[a] || a - b);
}

/** The token at which the cumulative probability passes `number`, 0 <= number < 1. */
function pick(probabilities, number) {
  let last = 0;
  for (let token = 0; token < probabilities.length; token++) {
    if (probabilities[token] > 0) last = token;
    number -= probabilities[token];
    if (number < 0) break;
  }
  return last; // after rounding errors: the last possible token
}

/** A number in [0, 1) for each seed and index: a text is the same when it is generated in several parts. */
function random(seed, index) {
  // Two rounds of the mixing function of MurmurHash3, whose every output bit depends on every input bit.
  const mix = (n) => {
    n = Math.imul(n ^ (n >>> 16), 0x85ebca6b);
    n = Math.imul(n ^ (n >>> 13), 0xc2b2ae35);
    return n ^ (n >>> 16);
  };
  return (mix(mix(seed + 0x9e3779b9) ^ Math.imul(index + 1, 0x9e3779b1)) >>> 0) / 2 ** 32;
}

/** One token per character: code points, not the halves of surrogate pairs. */
class CharTokenizer {
  constructor(characters) {
    this.characters = Array.from(characters);
    this.tokens = new Map(this.characters.map((character, token) => [character, token]));
    this.start = this.tokens.get("\n") ?? 0;
  }

  /** Tokens of the characters that the vocabulary holds, and the others. */
  encode(text) {
    const characters = Array.from(text);
    return {
      tokens: characters.filter((each) => this.tokens.has(each)).map((each) => this.tokens.get(each)),
      unknown: [...new Set(characters.filter((each) => !this.tokens.has(each)))],
    };
  }

  /** A function from a token to the text that it completes. */
  decoder() {
    return (token) => this.characters[token];
  }

  /** Whether a token can only be the beginning of a character. */
  begins() {
    return false;
  }
}

/** One token per byte of UTF-8. */
class ByteTokenizer {
  start = 10; // a line break

  encode(text) {
    return { tokens: Array.from(new TextEncoder().encode(text)), unknown: [] };
  }

  /** A character comes with its last byte; bytes that are none become U+FFFD. */
  decoder() {
    const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
    return (token) => utf8.decode(Uint8Array.of(token), { stream: true });
  }

  begins(token) {
    return token >= 0xc2 && token <= 0xf4;
  }
}
