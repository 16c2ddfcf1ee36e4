"""ULMFiT for transformers, in fastai's way of working

Modules:

- `fastformers.all`: Everything at once, for notebooks
- `fastformers.cli`: The command `fastformers`: run a recipe, or the demo
- `fastformers.core`: What a tokenized text is: ids that carry their own padding, segments and predicted positions
- `fastformers.core_show`: Batches of tokens as tables a person reads: `show_batch`, `show_results`, `plot_top_losses`
- `fastformers.corpora`: Text that is always there, and small readers for the text that is yours
- `fastformers.data`: Texts and labels to loaders: packed documents, splits, and the two factories `lm_dls` and `classifier_dls`
- `fastformers.files`: What a user names in a recipe or on a command line: tables of texts, columns in them, directories to write
- `fastformers.heads`: From hidden states to a prediction: pooling functions, a mix of layers, and ULMFiT's classifier head.
- `fastformers.learner`: Put data and model together: `lm_learner`, `classifier_learner`, and the verbs they add to fastai's `Learner`
- `fastformers.loaders`: Tokenized texts to batches: padding, and a loader that groups texts of similar length
- `fastformers.models`: A Hugging Face network as tokens -> prediction, its layers in order
- `fastformers.objectives`: What the network is asked to predict: masked and causal language modelling
- `fastformers.recipe`: A run as an INI file: every setting in one table, checked before anything is loaded
- `fastformers.report`: What each stage bought: tables, a picture and plain sentences, each difference with its interval
- `fastformers.rows`: What a table says: its texts, its labels, its split, and what is wrong with them
- `fastformers.schedules`: Which layers learn when, and how fast, as a table.
- `fastformers.stages`: A stage as a record of what it did, and the directory it hands over
- `fastformers.testing`: Tiny texts, tokenizers and networks, made on the spot
- `fastformers.tokens`: Text to ids and back, once, with any fast Hugging Face tokenizer
- `fastformers.tokens_train`: A vocabulary learnt from the user's own text, in a form that every Hugging Face tool opens
- `fastformers.training`: The mechanics around a step: frozen weights that stay frozen, a faster Adam, bfloat16 on the CPU, how many epochs fit into a time budget.
- `fastformers.ulmfit`: The three stages as recipes: `pretrain_lm`, `fine_tune_lm`, `fine_tune_classifier`, and all of them in a row"""

__version__ = "0.1.0"
