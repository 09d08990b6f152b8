/* The model of gpt/model.py, for one token at a time, with its tokenizers and its sampling. Nothing here depends on the page.

   Weights, keys and values are stored as fp32; all other numbers are doubles. C is dim; D is C / heads. */

/** out[r] = the dot product of x with row r of w, which begins at w[start + r * stride].
    The loop computes four rows at a time, so that it loads each x[n] once for all four. */
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

/** out += x[r] times row r of w, for the first `count` rows; row r begins at w[start + r * stride].
    Rows with x[r] = 0 are not read. The loop adds four rows at a time, so that it updates each out[n] once for all four. */
function addRows(out, x, count, w, start, stride) {
  const cols = out.length, used = [];
  for (let r = 0; r < count; r++) if (x[r] !== 0) used.push(r);
  const rest = used.length % 4, row = (u) => start + used[u] * stride;
  for (let u = 0; u < rest; u++)
    for (let n = 0, i = row(u), a = x[used[u]]; n < cols; n++) out[n] += a * w[i + n];
  for (let u = rest; u < used.length; u += 4) {
    const i = row(u), j = row(u + 1), k = row(u + 2), l = row(u + 3);
    const a = x[used[u]], b = x[used[u + 1]], c = x[used[u + 2]], d = x[used[u + 3]];
    for (let n = 0; n < cols; n++) out[n] += a * w[i + n] + b * w[j + n] + c * w[k + n] + d * w[l + n];
  }
}

/** Replace the first `count` values by their softmax. */
function softmax(values, count) {
  let most = -Infinity, sum = 0;
  for (let i = 0; i < count; i++) most = Math.max(most, values[i]);
  for (let i = 0; i < count; i++) sum += values[i] = Math.exp(values[i] - most);
  for (let i = 0; i < count; i++) values[i] /= sum;
}

/** Return the error function of x in double precision, by the series 7.1.6 of Abramowitz and Stegun. */
function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x);
  let term = x, sum = x;
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) sum += term *= (2 * x * x) / (2 * n + 1);
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

/** Return the value for a choice of the configuration, or throw: no choice may be computed as another one. */
function choose(table, choice) {
  if (!Object.hasOwn(table, choice)) throw new Error(`unknown choice ${choice}: one of ${Object.keys(table).join(", ")}`);
  return table[choice];
}

const CENTRES = { layernorm: true, rmsnorm: false };
const ABSOLUTE = { learned: true, sinusoidal: true, rotary: false, none: false };
const ACTIVATIONS = {
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  relu2: (x) => (x > 0 ? x * x : 0),
};

/** Return the transpose of a matrix: (rows, cols) -> (cols, rows). */
function transposed(w, rows, cols) {
  const out = new Float32Array(w.length);
  for (let r = 0; r < rows; r++) for (let c = 0; c < cols; c++) out[c * rows + r] = w[r * cols + c];
  return out;
}

/** A GPT that reads a text token by token.

   A text may be longer than the context, as in gpt/inference/decoder.py. With learned or sinusoidal positions, the model
   reads the last half of the context again, from position 0, when all positions are used. Other positions have no limit.
   Attention covers the last `window` tokens: the context, or config.window if that is shorter. */
class GPT {
  /** config: the fields of ModelConfig; vocabularySize: a number; weights: {name in the state dict: Float32Array}. */
  constructor(config, vocabularySize, weights) {
    const { layers, dim, heads, context } = config;
    Object.assign(this, { config, weights });
    this.absolute = choose(ABSOLUTE, config.positions);
    this.centred = choose(CENTRES, config.norm);
    this.activation = choose(ACTIVATIONS, config.activation);
    this.window = Math.min(config.window ?? context, context);
    // The cache has this many slots, one for each token. When all are full, the oldest `window` are dropped and the rest moves
    // to the front, so the keys of a window are always contiguous. The page shows the attention of earlier tokens, so
    // queries are stored, too.
    this.slots = this.absolute ? Math.min(context, 3 * this.window) : 3 * this.window;
    this.blocks = Array.from({ length: layers }, (_, i) => {
      const prefix = `blocks.${i}.`, own = Object.entries(weights).filter(([name]) => name.startsWith(prefix));
      const block = Object.fromEntries(own.map(([name, values]) => [name.slice(prefix.length), values]));
      // Most hidden values of relu2 are 0. In the transposed matrix, `addRows` skips the weights of those values.
      block["mlp.down.weight"] = transposed(block["mlp.down.weight"], dim, 4 * dim);
      for (const name of ["q", "k", "v"]) block[name] = new Float32Array(this.slots * dim);
      return { ...block, lastKey: new Float64Array(dim), recent: [] };
    });
    const vector = (length) => new Float64Array(length);
    for (const name of ["x", "normed", "mixed", "branch"]) this[name] = vector(dim);
    this.qkv = vector(3 * dim);
    const size = dim / heads;
    const byHead = (values) => Array.from({ length: heads }, (_, h) => values.subarray(h * size, (h + 1) * size));
    [this.queries, this.mixedHeads] = [byHead(this.qkv), byHead(this.mixed)];
    this.scores = vector(this.window);
    this.hidden = vector(4 * dim);
    this.logits = vector(vocabularySize);
    const rotated = config.positions !== "rotary" ? 0 : config.key_offset ? Math.floor(size / 2) : size; // rotary dimensions
    this.frequencies = Array.from({ length: rotated / 2 }, (_, i) => 10000 ** ((-2 * i) / rotated));
    this.cos = vector(this.frequencies.length);
    this.sin = vector(this.frequencies.length);
    this.reset();
  }

  /** Forget the text. */
  reset() {
    this.tokens = [];
    this.begin = 0; // index of the token that has position 0
    this.origin = 0; // index of the token in slot 0
  }

  /** Read one more token. */
  read(token) {
    const { context } = this.config;
    const last = this.tokens.push(token) - 1;
    if (!this.absolute || last - this.begin < context) return this.encode(last);
    this.begin = this.origin = last - Math.floor(context / 2);
    for (let index = this.begin; index <= last; index++) this.encode(index);
  }

  /** Return the logits of the next token. The next call overwrites the array. */
  predict() {
    const { weights, config } = this;
    this.norm(this.normed, weights["norm.weight"], weights["norm.bias"]);
    const head = weights[config.tied ? "embedding.weight" : "head.weight"];
    products(this.logits, this.normed, head, 0, config.dim, this.logits.length);
    return this.logits;
  }

  /** Return the attention weights of the token at an index: `weights[i]` is for the token at index `from + i`.
      Return null if the cache has dropped some of their keys. */
  attention(layer, head, index) {
    const slot = index - this.origin;
    const first = Math.max(0, slot - this.window + 1);
    if (slot < 0 || index >= this.tokens.length || (first === 0 && this.origin > this.begin)) return null;
    const { dim, heads } = this.config;
    const block = this.blocks[layer], size = dim / heads, start = slot * dim + head * size;
    const weights = new Float64Array(slot - first + 1);
    this.attend(weights, block.q.subarray(start, start + size), block.k, first, slot, head);
    return { from: this.origin + first, weights };
  }

  /** Compute all blocks for the token at an index. Store its keys and values in a slot, and its residual stream in x. */
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
    this.frequencies.forEach((frequency, i) => { // rounded to fp32, as in gpt/positions.py
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
    for (const block of this.blocks) {
      this.norm(normed, block["norm1.weight"], block["norm1.bias"]);
      this.mix(block, slot);
      products(branch, this.mixed, block["attention.proj.weight"], 0, dim, dim);
      add(x, branch);
      add(x, block["attention.proj.bias"]);

      this.norm(normed, block["norm2.weight"], block["norm2.bias"]);
      products(hidden, normed, block["mlp.up.weight"], 0, dim, 4 * dim);
      add(hidden, block["mlp.up.bias"]);
      for (let n = 0; n < hidden.length; n++) hidden[n] = this.activation(hidden[n]);
      branch.fill(0);
      addRows(branch, hidden, hidden.length, block["mlp.down.weight"], 0, dim);
      add(branch, block["mlp.down.bias"]);
      if (config.conv_taps > 1) this.convolve(block, slot);
      add(x, branch);
    }
  }

  /** out = LayerNorm or RMSNorm of x. */
  norm(out, weight, bias) {
    const { x } = this, size = x.length;
    let mean = 0, square = 0;
    if (this.centred) for (let c = 0; c < size; c++) mean += x[c] / size;
    for (let c = 0; c < size; c++) square += (x[c] - mean) ** 2;
    const scale = 1 / Math.sqrt(square / size + 1e-5);
    for (let c = 0; c < size; c++) out[c] = (x[c] - mean) * scale * weight[c];
    add(out, bias);
  }

  /** Apply the causal convolution (conv_taps) to what the MLP returns: add tap i times the output for i + 1 tokens earlier. */
  convolve(block, slot) {
    const { branch } = this, { recent } = block; // outputs for earlier tokens, the newest first
    const own = branch.slice();
    if (slot === 0) recent.length = 0;
    recent.forEach((earlier, tap) => {
      const factors = block[`mlp.taps.${tap}`];
      for (let c = 0; c < own.length; c++) branch[c] += factors[c] * earlier[c];
    });
    recent.unshift(own);
    recent.length = Math.min(recent.length, this.config.conv_taps - 1);
  }

  /** Compute the attention of all heads at a slot, without the output projection: from `normed` to `mixed`. */
  mix(block, slot) {
    const { config, qkv, mixed, scores } = this;
    const { dim, heads } = config;
    const size = dim / heads;
    products(qkv, this.normed, block["attention.qkv.weight"], 0, dim, 3 * dim);
    add(qkv, block["attention.qkv.bias"]);
    for (let start = 0; start < 2 * dim; start += size) { // the queries of all heads, then their keys
      if (config.qk_norm) unitRms(qkv, start, size);
      rotate(qkv, start, this.cos, this.sin);
    }
    const row = slot * dim;
    // With key_offset, the last half of each head's key is that of the previous token.
    const own = config.key_offset ? size - Math.floor(size / 2) : size;
    for (let c = 0; c < dim; c++) {
      const key = qkv[dim + c];
      block.q[row + c] = qkv[c];
      block.k[row + c] = c % size < own ? key : slot > 0 ? block.lastKey[c] : 0;
      block.v[row + c] = qkv[2 * dim + c];
      block.lastKey[c] = key;
    }
    const first = Math.max(0, slot - this.window + 1);
    mixed.fill(0);
    for (let h = 0; h < heads; h++) {
      this.attend(scores, this.queries[h], block.k, first, slot, h);
      addRows(this.mixedHeads[h], scores, slot - first + 1, block.v, first * dim + h * size, dim);
    }
  }

  /** weights = softmax(q k / sqrt(D) - slope * distance) of one head, for the keys in slots `first` to `last`. */
  attend(weights, query, keys, first, last, head) {
    const { dim, heads } = this.config;
    const size = dim / heads, count = last - first + 1;
    products(weights, query, keys, first * dim + head * size, dim, count);
    for (let s = 0; s < count; s++) weights[s] /= Math.sqrt(size);
    softmax(weights, count);
  }
}

/** out += values; without values (a bias that the model lacks), do nothing. */
function add(out, values) {
  if (values) for (let n = 0; n < out.length; n++) out[n] += values[n];
}

/** Divide `size` values from `start` by their root mean square. */
function unitRms(values, start, size) {
  let square = 0;
  for (let n = start; n < start + size; n++) square += values[n] * values[n];
  const scale = 1 / Math.sqrt(square / size + 2 ** -23); // torch's rms_norm adds the fp32 epsilon
  for (let n = start; n < start + size; n++) values[n] *= scale;
}

/** Rotate the pairs of values (n, n + half) that begin at `start`, as gpt/attention.py does. */
function rotate(values, start, cos, sin) {
  const half = cos.length;
  for (let i = 0, n = start; i < half; i++, n++) {
    const a = values[n], b = values[n + half];
    values[n] = a * cos[i] - b * sin[i];
    values[n + half] = a * sin[i] + b * cos[i];
  }
}

/** Return the probabilities to sample from. Temperature 0 is greedy; topK 0 keeps all tokens. */
function probabilities(logits, temperature, topK) {
  const out = new Float64Array(logits.length);
  let best = 0;
  for (let i = 1; i < out.length; i++) if (logits[i] > logits[best]) best = i;
  if (temperature === 0) {
    out[best] = 1;
    return out;
  }
  // Subtract the largest logit first: a tiny temperature would turn it into Infinity, and the softmax into NaN.
  for (let i = 0; i < out.length; i++) out[i] = (logits[i] - logits[best]) / temperature;
  if (topK > 0) for (const token of ranked(logits).subarray(topK)) out[token] = -Infinity;
  softmax(out, out.length);
  return out;
}

/** Return the tokens, from the largest value to the smallest. */
function ranked(values) {
  return Uint32Array.from(values.keys()).sort((a, b) => values[b] - values[a] || a - b);
}

/** Return the first token whose cumulative probability exceeds `number`, 0 <= number < 1. */
function pick(probabilities, number) {
  let last = 0;
  for (let token = 0; token < probabilities.length; token++) {
    if (probabilities[token] > 0) last = token;
    number -= probabilities[token];
    if (number < 0) break;
  }
  return last; // if the sum rounds to less than `number`: the last token with a probability above 0
}

/** Return a pseudo-random number in [0, 1) for a seed and an index. It depends on nothing else, so a text that is
    generated in several parts is the same as one generated at once. */
function random(seed, index) {
  // The finalizer of MurmurHash3, applied twice.
  const mix = (n) => {
    n = Math.imul(n ^ (n >>> 16), 0x85ebca6b);
    n = Math.imul(n ^ (n >>> 13), 0xc2b2ae35);
    return n ^ (n >>> 16);
  };
  return (mix(mix(seed + 0x9e3779b9) ^ Math.imul(index + 1, 0x9e3779b1)) >>> 0) / 2 ** 32;
}

/** One token for each character, that is, for each Unicode code point. */
class CharTokenizer {
  constructor(characters) {
    this.characters = Array.from(characters);
    this.tokens = new Map(this.characters.map((character, token) => [character, token]));
    this.start = this.tokens.get("\n") ?? 0;
  }

  /** Return the tokens of the text's known characters, and the distinct unknown characters. */
  encode(text) {
    const known = (letter) => this.tokens.has(letter);
    const characters = Array.from(text.replace(/\S+/g, (word) => {
      if (Array.from(word).every(known)) return word;
      // Unknown characters become canonically equivalent known ones: é becomes e and a combining accent.
      return Array.from(word.normalize("NFC"), (letter) => {
        const form = letter.normalize("NFD");
        return !known(letter) && Array.from(form).every(known) ? form : letter;
      }).join("");
    }));
    return {
      tokens: characters.filter(known).map((letter) => this.tokens.get(letter)),
      unknown: [...new Set(characters.filter((letter) => !known(letter)))],
    };
  }

  /** Return a function from the next token to the text that this token completes. */
  decoder() {
    return (token) => this.characters[token];
  }
}

/** One token for each byte of UTF-8. */
class ByteTokenizer {
  start = 10; // a line break

  encode(text) {
    return { tokens: Array.from(new TextEncoder().encode(text)), unknown: [] };
  }

  /** The last byte of a character completes the character. Bytes that are not valid UTF-8 become U+FFFD. */
  decoder() {
    const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
    return (token) => utf8.decode(Uint8Array.of(token), { stream: true });
  }

  /** Return whether a token begins a character of several tokens. */
  begins(token) {
    return token >= 0xc2 && token <= 0xf4;
  }
}
