"""ULMFiT for transformers, in fastai's way of working

Modules:

- `fastformers.all`: The names you need in a notebook, in one import
- `fastformers.callback.auxiliary_lm`: Train the language model together with the classifier, to reduce forgetting: `AuxiliaryLM`
- `fastformers.callback.compute`: Numeric precision and gradient accumulation: `precision`, `cpu_bf16`, `TokenAccumulation`
- `fastformers.callback.freeze`: Callbacks for frozen layers: no weight decay, no dropout, cached hidden states
- `fastformers.callback.lr_find`: Suggest a learning rate from several short runs, and the number of epochs for a time budget: `lr_sweep`, `epochs_for`
- `fastformers.callback.regularize`: Regularizers for fine-tuning that keep pretrained knowledge: `Regularizer`, `L2SP`, `Mixout`, `RDrop`, `EWC`
- `fastformers.callback.resume`: Save checkpoints during training and continue an interrupted run with the same result: `Resume`
- `fastformers.callback.schedule`: Unfreezing and learning rate schedules for layer groups, as a table: `Schedule`, `fit_schedule`
- `fastformers.cli`: The command `fastformers`: `run demo pretrain adapt classify predict`
- `fastformers.data.block`: Texts and labels to loaders: the two factories `lm_dls` and `classifier_dls`, and a block for a `DataBlock` of your own
- `fastformers.data.labels`: Read and check the columns of texts and labels; the split into training and validation
- `fastformers.data.loader`: Tokenized texts to batches: padding, and a loader that groups texts of similar length
- `fastformers.data.packing`: Documents to rows of tokens for language modelling
- `fastformers.data.show`: Show batches of tokens as tables: `show_batch`, `show_results`, `plot_top_losses`
- `fastformers.files`: Atomic writes of directories and files; content hash, cache directory, suggestions for misspelt names
- `fastformers.hub`: Find a checkpoint's files: in a directory, a Python package, the local cache or on the model hub
- `fastformers.inference.bundle`: Write and read a trained classifier as a directory of safetensors and JSON files, without pickled code
- `fastformers.inference.predictor`: Use a trained classifier without fastai: `from_hf` opens it as a `Predictor`; `Ensemble` averages several
- `fastformers.inference.stage_json`: Read and write `stage.json`: data, settings, scores and versions of a training stage and of the stages before it
- `fastformers.inference.tags`: A tag for each word of a text: the task `tags`, its tokenizer, and spans of tagged words
- `fastformers.inference.tasks`: Kinds of label: one class, several classes, a number; with loss, metrics, head and decoding
- `fastformers.interpret.decisions`: From scores to decisions: `calibrate`, `tune_thresholds`, `plot_reliability`, `accuracy_at_coverage`
- `fastformers.interpret.forgetting`: `forgetting`: how much fine-tuning changed the LM loss, with a 95 % interval
- `fastformers.interpret.probes`: `layer_probes`: what a linear classifier can read from each layer of a network
- `fastformers.learner.core`: Put data and model together: `lm_learner`, `classifier_learner`, and the verbs they add to fastai's `Learner`
- `fastformers.learner.counts`: Start the token embeddings of a language model from counts: `start_from_counts`
- `fastformers.learner.generation`: Fill masks and generate text with a language model: `fill_mask`, `generate`
- `fastformers.learner.optimizer`: `FusedAdam`, `BertAdam`, and no weight decay on normalization layers
- `fastformers.models.adapters`: Bottleneck adapters, LoRA and BitFit: train a few weights of a frozen model and save them in a small file
- `fastformers.models.core`: Hugging Face models as modules that map a batch of tokens to a prediction
- `fastformers.models.families`: Layer groups, causality and maximum length of any transformers model, with one table row for each exception
- `fastformers.models.fast_cpu`: Faster training on a CPU: attention without torch's kernel, and dropout with a quarter of the random numbers
- `fastformers.models.heads`: Classifier heads: pooling, ULMFiT's head, an LSTM, one prediction a token, and a learned mix of layers
- `fastformers.models.load`: Load a model from a checkpoint or a config, with a report of its weights
- `fastformers.objectives.core`: Language modelling objectives: reversible transforms from tokens to (input, targets), with loss, metrics and model
- `fastformers.objectives.metrics`: Accuracy, perplexity and loss per byte of a language model: exact means, whatever the batch size
- `fastformers.objectives.mlm`: Masked language modelling, of tokens (`MLM`) or of whole words (`WholeWordMLM`)
- `fastformers.objectives.rtd`: Replaced token detection (ELECTRA): find the tokens of a text that a small language model has replaced
- `fastformers.testing`: Tiny texts, tokenizers and networks, made in memory
- `fastformers.text.core`: `TensorTokens`: token ids with their padding, segments and predicted positions in one tensor
- `fastformers.text.corpora`: `docs_corpus`: the documentation of installed Python libraries as a classification task, without a download
- `fastformers.text.readers`: Read texts and labels from csv, tsv, jsonl, txt, folders and CoNLL files into a DataFrame
- `fastformers.text.store`: `TokenStore`: a corpus of any size, tokenized once into memory-mapped files
- `fastformers.text.tokenizer`: `HFTokenizer`: text to ids and back with any fast Hugging Face tokenizer; add tokens to a trained tokenizer
- `fastformers.text.train_tokenizer`: `train_tokenizer`: train a Hugging Face tokenizer (unigram, BPE or WordPiece) on your own texts
- `fastformers.ulmfit.curve`: Accuracy over the number of labels, with and without stage 2, beside TF-IDF: `label_curve`
- `fastformers.ulmfit.recipe`: All settings of a run as dataclasses: sections of an INI file, flags of the commands, arguments of the stage functions
- `fastformers.ulmfit.record`: The record of a training stage, and a table of several: `Stage`, `stage_table`
- `fastformers.ulmfit.report`: What each stage of a run gained: tables, a figure and sentences, each difference with its 95 % interval
- `fastformers.ulmfit.restarts`: Repeat a fit with several seeds and keep the best: `best_of`
- `fastformers.ulmfit.run`: All stages on one DataFrame, and a report of what each stage gained: `ulmfit`
- `fastformers.ulmfit.scores`: Metrics of a learner, a score for each row, scores by class, and the score of a simple baseline: `measure`, `class_scores`, `tfidf_hits`
- `fastformers.ulmfit.stage`: The three stages, each a function: `pretrain_lm`, `fine_tune_lm`, `fine_tune_classifier`"""

__version__ = "0.1.0"
