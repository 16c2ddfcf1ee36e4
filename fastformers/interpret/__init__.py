"""What a model learned, and what it forgot"""
