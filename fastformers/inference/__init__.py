"""Trained tasks as directories, and predictors without fastai"""
