"""The codec: records with tensors to bytes and back, sparse and compressed tensors."""
