# /// script
# requires-python = ">=3.11"
# dependencies = ["fastformers[minilm]"]
#
# [tool.uv.sources]
# fastformers = { path = "..", editable = true }
# ///
"""Train a classifier on a csv file with the columns text and label, and label the texts of another

    uv run examples/csv_to_labels.py reviews.csv new.csv labelled.csv
    python examples/csv_to_labels.py reviews.csv new.csv labelled.csv    # where fastformers is installed
"""
import logging, sys
from pathlib import Path
from fastformers.inference.predictor import from_hf
from fastformers.learner.evaluate import class_scores
from fastformers.text.readers import read_texts
from fastformers.ulmfit.stage import fine_tune_classifier

def main(labelled, new, out, arch='minilm'):
    "Train on the file `labelled`, and write the texts of the file `new` with label and score to `out`"
    path = Path(out).with_suffix('')                             # directory of the classifier
    if not Path(out).suffix: sys.exit(f'expected a file such as {out}.csv')
    stage = fine_tune_classifier(read_texts(labelled), arch, path, refit=True)
    scores = class_scores(stage.learner)                         # None for numbers
    if scores is not None: print(scores.round(2).to_string(na_rep=''))
    print(stage.interval())
    print(stage.verdict)                                         # against the largest class, TF-IDF, the frozen probe
    answers = from_hf(path).predict_frame(read_texts(new, labels=False), 'text')
    answers.to_csv(out, index=False)
    print(answers.head().to_string(index=False))

if __name__=='__main__':
    if len(sys.argv) not in (4,5): sys.exit(__doc__)
    logging.basicConfig(level=logging.INFO, format='%(message)s')
    main(*sys.argv[1:])
