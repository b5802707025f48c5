"""Chapter 15: accuracy of trained Vision Transformers across head dimensions, and the ranks of their attention."""
