"""What a language model is asked to predict"""
