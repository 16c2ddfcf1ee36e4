"""ULMFiT for transformers, in fastai's way of working

Modules:

- `fastformers.accumulate`: The gradient of a large batch from several small ones, exactly: `TokenAccumulation`
- `fastformers.adapters`: Train few weights: functions `model -> model` that freeze a network but for a small part
- `fastformers.adapters_files`: What a few weights have learnt, as one small file: `save_adapters`, `load_adapters`
- `fastformers.all`: Everything at once, for notebooks
- `fastformers.auxiliary`: Go on with the language model while the classifier learns: `AuxiliaryLM`
- `fastformers.blocks`: Several texts in one row, none of which sees another
- `fastformers.bundles`: A classifier as files: safetensors and JSON, all that is needed to rebuild it, nothing that runs code
- `fastformers.checkpoints`: Everything that moves in a training run, written so that it is whole or not there, with no pickle
- `fastformers.cli`: The command `fastformers`: its verbs, its exit codes, and the run of a recipe
- `fastformers.cli_args`: Command-line flags from the parameters of a function and the comments beside them
- `fastformers.cli_csv`: csv files row by row and letter by letter, of any size
- `fastformers.cli_output`: Where a command writes: tried before the work, complete or absent after it
- `fastformers.cli_predict`: The commands that use a classifier: `predict` and `export`
- `fastformers.cli_stages`: The commands that train: `pretrain`, `adapt`, `classify`
- `fastformers.compute`: Less memory, fewer passes over memory, the same result: `GradientCheckpointing` and `CompileBlocks`
- `fastformers.core`: What a tokenized text is: ids that carry their own padding, segments and predicted positions
- `fastformers.core_show`: Batches of tokens as tables a person reads: `show_batch`, `show_results`, `plot_top_losses`
- `fastformers.corpora`: Text that is always there, and small readers for the text that is yours
- `fastformers.data`: Texts and labels to loaders: the two factories `lm_dls` and `classifier_dls`, and a block for a `DataBlock` of your own
- `fastformers.encoding`: Pieces of text to ids, here or in other processes, always in the same order
- `fastformers.ewc`: Which weights mattered before? `fisher_diagonal`, and the penalty that spares them, `EWC`
- `fastformers.export`: Leave fastai: `from_hf` opens a classifier as a `Predictor`, texts in, labels and scores out
- `fastformers.families`: What the model families of the transformers library have in common, and one row for each that differs
- `fastformers.files`: What a user names in a recipe or on a command line: tables of texts, columns in them, directories to write
- `fastformers.fine_tuning`: The three stages, each a function: `pretrain_lm`, `fine_tune_lm`, `fine_tune_classifier`
- `fastformers.forgetting`: What did fine-tuning cost? The language model's loss on general text, before and after: `forgetting`
- `fastformers.heads`: From hidden states to a prediction: pooling functions, a mix of layers, and ULMFiT's classifier head.
- `fastformers.hub`: Where a checkpoint's files are: a directory, a Python package, the local cache or the model hub
- `fastformers.learner`: Put data and model together: `lm_learner`, `classifier_learner`, and the verbs they add to fastai's `Learner`
- `fastformers.loaders`: Tokenized texts to batches: padding, and a loader that groups texts of similar length
- `fastformers.loading`: A network from a checkpoint or a config, and what became of its weights
- `fastformers.lr_sweep`: The learning rate for the groups that are open now, from several short runs that leave no trace: `lr_sweep`
- `fastformers.measure`: A score for each validation row, so that two models, or one before and after training, are compared row by row
- `fastformers.models`: A Hugging Face network as tokens -> prediction, its layers in order
- `fastformers.objectives`: What the network is asked to predict: masked and causal language modelling
- `fastformers.packing`: Documents to rows of tokens for language modelling
- `fastformers.ragged`: Rows of integers of different lengths in a directory: memory-mapped, checksummed, written once, resumed after a crash
- `fastformers.recipe`: A run as an INI file: every setting in one table, checked before anything is loaded
- `fastformers.regularizers`: Keep what pretraining learnt while fine-tuning: `L2SP`, `Mixout`, `RDrop`
- `fastformers.report`: What each stage bought: tables, a picture and plain sentences, each difference with its interval
- `fastformers.resume`: Continue a run that was stopped anywhere, as if nothing had happened: `Resume`
- `fastformers.rows`: What a table says: its texts, its labels, its split, and what is wrong with them
- `fastformers.schedules`: Which layers learn when, and how fast, as a table.
- `fastformers.stage_show`: How a stage is shown: a line while it trains, a table when it is done, and how well each class is told from the others
- `fastformers.stages`: A stage as a record of what it did, and the directory it hands over
- `fastformers.store`: A corpus of any size, tokenized once into files that are mapped, not loaded
- `fastformers.streams`: Documents from lists, tables and files of any size, a piece at a time
- `fastformers.task`: What the data ask for: kind of target, labels, loss, metrics
- `fastformers.testing`: Tiny texts, tokenizers and networks, made on the spot
- `fastformers.tokens`: Text to ids and back, once, with any fast Hugging Face tokenizer
- `fastformers.tokens_train`: A vocabulary learnt from the user's own text, in a form that every Hugging Face tool opens
- `fastformers.training`: The mechanics around a step: frozen weights that stay frozen, a faster Adam, bfloat16 on the CPU, how many epochs fit into a time budget.
- `fastformers.ulmfit`: All stages in a row on one DataFrame, and a report of what each one bought: `ulmfit`
- `fastformers.vocab`: New tokens for a tokenizer that is already trained: words of a domain, and what a pair of texts needs"""

__version__ = "0.1.0"
