"""Data and model in a fastai Learner"""
