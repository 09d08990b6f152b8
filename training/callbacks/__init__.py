"""Lightning callbacks, in the order that training/assemble.py gives them."""
