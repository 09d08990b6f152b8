"""What people look at: terminal lines, TensorBoard, pictures, HTML pages."""
