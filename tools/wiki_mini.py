"""Make the package data `fastformers/wiki-mini` from a trained directory: `FASTFORMERS_DATA=... python tools/wiki_mini.py DIR`

DIR is what the last command in `recipes/wiki-mini.ini` wrote. Weights become float16. The model card gets the figures of DIR's `stage.json`, which holds those of the legs before it, and loss, accuracy and bits per byte of masked tokens on the test articles of Wikipedia, which nothing was chosen by."""
import json, math, os, sys
from pathlib import Path
import pandas as pd
from fastformers.files import atomic_dir, write_text
from fastformers.models.load import load_hf, quiet_hf
from fastformers.text.readers import read_texts
from fastformers.text.tokenizer import load_tokenizer
from fastformers.inference.stage_json import read_stage
from fastformers.stats import fmt_time
from fastformers.learner.evaluate import evaluate
from transformers import AutoModelForMaskedLM

root = Path(__file__).resolve().parent.parent
notice = """wiki-mini was trained on articles of the English Wikipedia (dump of about early 2021), by the contributors to Wikipedia,
https://en.wikipedia.org, under CC BY-SA 3.0 (https://creativecommons.org/licenses/by-sa/3.0/) and the GFDL.
The weights and the vocabulary are offered under CC BY-SA 3.0; the code of fastformers has its own licence, Apache 2.0.
"""

def test_figures(path, data):
    "Metrics of masked tokens, 15 %, in rows of 256 tokens of the test articles in the directory `data`"
    from fastformers.data.block import lm_dls
    from fastformers.learner.core import lm_learner
    rows = pd.concat([read_texts(data/f'{o}.txt.gz').assign(is_valid=o=='test') for o in ('valid','test')], ignore_index=True)
    learn = lm_learner(lm_dls(rows, path, seq_len=256, bs=16, packing='full-sentences', device='cpu'), path, precision='fp32')
    return evaluate(learn)[0]

def leg(o):
    "A row of the card for the stage `o`, a dict of stage.json"
    r,n = o['recipe'],o['sizes']['training tokens']*sum(o['recipe']['schedule']['epochs'])/1e6
    return (f"{n:.1f} million tokens in rows of at most {r['seq_len']}, masked at {r['mask_rate']:.0%}, rate {o['lr']:g}, {fmt_time(o['seconds'])} of a processor core: "
            f"validation loss {o['before']['loss']:.2f} to {o['metrics']['loss']:.2f}")

def card(legs, config, figures, n_weights):
    return f"""---
language: en
license: cc-by-sa-3.0
library_name: transformers
pipeline_tag: fill-mask
tags: [fastformers]
---
# wiki-mini

A small masked language model of English, to start from where no model hub is at hand: `arch='wiki-mini'` in fastformers, or `AutoModelForMaskedLM.from_pretrained` of this directory. Its recipe is `recipes/wiki-mini.ini`.

| | |
|---|---|
| Network | {config.model_type}, {config.num_hidden_layers} layers x {config.hidden_size}, {n_weights/1e6:.1f} million weights, float16 |
| Tokenizer | WordPiece, {config.vocab_size:,} tokens, lower case, trained on the same articles; after the first leg, 20 marks such as `?` and `_`, which these hardly use, took the place of entries that no text used |
| Data | 4,572 articles of the English Wikipedia, 14.4 million words, {legs[0]['sizes']['training tokens']:,} tokens; its early articles on core topics |
| Training | embeddings started from counts; {'; then '.join(map(leg, legs))} |
| On 61 test articles | masked tokens at 15 %: loss {figures['loss']:.3f} nats, accuracy {figures['accuracy']:.1%}, {figures['nll_per_byte']/math.log(2):.2f} bits per byte |

## Limits

It has read little, and of one kind of text. It knows words, grammar and topics; it knows few facts and does not reason. It reads English only, up to 512 tokens, and has seen rows of 256. What is wrong or unfair in Wikipedia may be in it. Larger checkpoints of the model hub are better wherever they can be had.

{notice}"""

def main(src, out=root/'fastformers'/'wiki-mini'):
    legs = [read_stage(src)]
    while isinstance(legs[0]['parent'], dict): legs.insert(0, legs[0]['parent'])
    with quiet_hf(): hf,_ = load_hf(AutoModelForMaskedLM, src)
    tok = load_tokenizer(src)
    with atomic_dir(out) as tmp:
        hf.half().save_pretrained(tmp)
        tok.save_pretrained(tmp)
        write_text(tmp/'stage.json', (src/'stage.json').read_text('utf-8'))
        figures = test_figures(tmp, Path(os.environ['FASTFORMERS_DATA'])/'wiki_en')
        write_text(tmp/'README.md', card(legs, hf.config, figures, sum(p.numel() for p in hf.parameters())))
        write_text(tmp/'NOTICE', notice)
    print(json.dumps(figures), {o.name:o.stat().st_size for o in sorted(out.iterdir())}, sum(o.stat().st_size for o in out.iterdir())/1e6, 'MB')

if __name__=='__main__':
    if len(sys.argv)!=2: sys.exit(__doc__)
    main(Path(sys.argv[1]))
