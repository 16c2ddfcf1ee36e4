"""ULMFiT for transformers, in fastai's way of working

Modules:

- `fastformers.core`: What a tokenized text is: ids that carry their own padding, segments and predicted positions"""

__version__ = "0.1.0"
