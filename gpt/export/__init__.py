"""Write a model in other formats: `write_<name>(model, meta, path)` in the module that `FORMATS` names.

`meta` is the description that `load_checkpoint` returns; `reports.card` writes the card.
"""

FORMATS = {  # suffix of the file ("": a folder), module of the writer, and how to load the file
    "onnx": (".onnx", "to_graph", "onnxruntime.InferenceSession({!r}).run(None, {{'tokens': tokens}})"),
    "torch": (".pt2", "to_graph", "torch.export.load({!r}).module()(tokens)"),
    "hf": ("", "to_hf", "transformers.AutoModelForCausalLM.from_pretrained({!r}, trust_remote_code=True)"),
    "web": (".html", "to_web_page", "open {!r} in a browser"),
    "card": (".md", "", "fill in the licence in {!r}"),
}
