"""Hugging Face networks as modules from tokens to predictions"""
