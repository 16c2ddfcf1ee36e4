"""Half of the heads of a trained classifier removed: error, size and seconds (`lens.heads`)

    FASTFORMERS_DATA=... python benchmarks/heads.py [--seeds 1,2,3]

A EuroBERT from random weights (6 layers of width 256, 16 heads of 16), which is first a masked language model of the 15,000 unlabelled utterances of CLINC150 and then a classifier of 2,000 labelled ones into ten domains. `head_importance` is computed on 500 development rows. Each share of the heads is
kept in the weights by `prune_heads`, without training afterwards; beside it as many heads drawn at random. Error in % on the 4,500 test rows, MB of the directory's weights, and seconds for these rows on one core, the least of three, in turns. The directory is opened by `AutoModel`.
"""
import tempfile
import torch
from classify import Rows
from common import *
from compare import clinc, draw

def shares(seed, kept=(1,.5,.25)):
    from fastai.torch_core import set_seed
    from transformers import AutoModel, EuroBertConfig
    from fastformers.inference.predictor import from_hf
    from fastformers.interpret.attention import head_importance
    from fastformers.lens.heads import prune_heads
    from fastformers.learner.save import as_predictor
    from fastformers.text.train_tokenizer import train_tokenizer
    from fastformers.ulmfit.stage import fine_tune_classifier, pretrain_lm
    train,dev,test = clinc()
    set_seed(seed)
    with tempfile.TemporaryDirectory() as tmp:
        tok = train_tokenizer(train.text, 'wordpiece', 4000)
        cfg = EuroBertConfig(vocab_size=len(tok), hidden_size=256, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=16, num_key_value_heads=16, head_dim=16,
                             pad_token_id=tok.pad_token_id, mask_token_id=tok.mask_token_id, bos_token_id=tok.cls_token_id, eos_token_id=tok.sep_token_id)
        lm = pretrain_lm(train.text.tolist(), f'{tmp}/lm', tok=tok, config=cfg, seed=seed, epochs=2, bs=16)
        learn = fine_tune_classifier(draw(train, 2000, seed)[['text','label']], f'{tmp}/lm', seed=seed).learner
        importance,whole = head_importance(learn, learn.dls.test_dl(dev.sample(500, random_state=seed)[['text','label']], with_labels=True)),as_predictor(learn)
        lot = importance.sample(frac=1, random_state=seed).set_axis(importance.index)
        rows,parts,texts,y = [],{},test.text.tolist(),test.label.map(whole.labels.index).to_numpy()
        def error(p): return 100*float((p.scores(texts).argmax(1).numpy()!=y).mean())
        for k in kept:
            path = f'{tmp}/{k}'
            (prune_heads(whole, importance, k) if k<1 else whole).save(path)
            parts[k] = from_hf(path)
            rows.append(dict(kept=k, heads=AutoModel.from_pretrained(path).config.num_attention_heads, error=round(error(parts[k]), 2), error_random=round(error(prune_heads(whole, lot, k)), 2) if k<1 else None,
                             MB=round(sum(o.stat().st_size for o in Path(path).rglob('*.safetensors'))/1e6, 2), seconds=1e9))
        for _ in range(3):
            for row in rows:
                start = time.perf_counter()
                error(parts[row['kept']])
                row['seconds'] = min(row['seconds'], round(time.perf_counter()-start, 2))
    return dict(shares=rows, lm_loss=round(float(lm.metrics['loss']), 3), commit=commit, precision=precision(), processor=processor())

if __name__=='__main__':
    args,table = parser(__doc__).parse_args(),Rows(results/'heads')
    torch.set_num_threads(1)
    quiet()
    for seed in map(int, args.seeds.split(',')): table.get(lambda: shares(seed), 'shares', seed=seed)
    d = pd.concat([pd.DataFrame(o['shares']) for o in table.all])
    print(d.groupby('kept').mean().round(2)[::-1].to_string())
