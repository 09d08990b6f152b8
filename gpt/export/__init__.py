"""Write a model in other formats, each with a function `write_NAME(model, meta, path)`.

`meta` is the description of the model that `load_checkpoint` returns, and `path` is the file or folder to write.
`write_torch` and `write_onnx` return the largest difference between the logits of the exported model and of the model.
The model card has no `write_NAME` function, because `reports.card` writes it.
"""

FORMATS = {  # suffix of the file ("": a folder), module of the writer, and how to load the file
    "onnx": (".onnx", "to_graph", "onnxruntime.InferenceSession({!r}).run(None, {{'tokens': tokens}})"),
    "torch": (".pt2", "to_graph", "torch.export.load({!r}).module()(tokens)"),
    "hf": ("", "to_hf", "transformers.AutoModelForCausalLM.from_pretrained({!r}, trust_remote_code=True)"),
    "web": (".html", "to_web_page", "open {!r} in a browser"),
    "card": (".md", "", "fill in the licence in {!r}"),
}
