"""Write a model in other formats.

`FORMATS` maps the name of each format to its module, in which a function `write_<name>(model, meta, path)` writes the
file or folder `path`. `meta` is the description of the model that `load_checkpoint` returns. `write_torch` and
`write_onnx` return how much the logits of the export differ from the model's, relative to the largest logit. The model
card has no such function here, because `reports.card` writes it.
"""

FORMATS = {  # suffix of the file ("": a folder), module of the writer, and how to load the file
    "onnx": (".onnx", "to_graph", "onnxruntime.InferenceSession({!r}).run(None, {{'tokens': tokens}})"),
    "torch": (".pt2", "to_graph", "torch.export.load({!r}).module()(tokens)"),
    "hf": ("", "to_hf", "transformers.AutoModelForCausalLM.from_pretrained({!r}, trust_remote_code=True)"),
    "web": (".html", "to_web_page", "open {!r} in a browser"),
    "card": (".md", "", "fill in the licence in {!r}"),
}
