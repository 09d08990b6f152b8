"""The export formats: suffix, purpose and writer of each."""

# For each format, which gpt/export/ has a module for, the end of its file's name (none: a folder), and a use of it.
FORMATS = {
    "onnx": (".onnx", "onnxruntime.InferenceSession({!r}).run(None, {{'tokens': tokens}})"),
    "torch": (".pt2", "torch.export.load({!r}).module()(tokens)"),
    "hf": ("", "transformers.AutoModelForCausalLM.from_pretrained({!r})"),
    "web": (".html", "open {!r} in a browser"),
}
