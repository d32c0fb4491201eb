"""Programs for other runtimes: a graph of array functions recorded from padded readings, as a module of torch and as an
ONNX file."""
