"""Batch prediction: `Predictor` against the Hugging Face pipeline, the same weights, fp32, order kept, texts cut at 256 tokens.

    FASTFORMERS_DATA=... python benchmarks/predict.py              # 5,000 TREC questions, 5,000 IMDb reviews, and both mixed
    FASTFORMERS_DATA=... python benchmarks/predict.py --rows 500   # a quick look

MiniLM with Hugging Face's own classification head, random: what is timed is the work, not the answer. The rows are cut into five parts; each part goes through both in turn, and what is
reported is the ratio, the median of the parts. The pipeline's best batch size is searched on the first part of each set, among 1 (its default), 4, 8, 16, 32 and 64.
"""
import random, tempfile, time
import numpy as np
from common import *

def bundle(path):
    "A checkpoint with a six-way classification head, random but scaled so that probabilities differ"
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from fastformers.hub import resolve_arch
    torch.manual_seed(0)
    arch = resolve_arch('minilm')
    model = AutoModelForSequenceClassification.from_pretrained(arch, num_labels=6)
    torch.nn.init.normal_(model.classifier.weight, std=.3)
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(arch, model_max_length=256).save_pretrained(path)

def timed(f, *args, **kwargs):
    start = time.perf_counter()
    res = f(*args, **kwargs)
    return time.perf_counter()-start, res

def table(out): return np.array([[o['score'] for o in sorted(r, key=lambda o: o['label'])] for r in out])

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--rows', type=int, default=5000, help='of each data set')
    args = p.parse_args()
    trec,imdb = (read(o).text.tolist()[:args.rows] for o in data_files('trec/train.csv', 'imdb/train.csv.gz'))
    mix = trec+imdb
    random.Random(0).shuffle(mix)
    from transformers import pipeline
    from transformers.utils import logging as hf_logging
    from fastformers.inference.predictor import from_hf
    import torch
    hf_logging.set_verbosity_error(); hf_logging.disable_progress_bar()
    figures = {'threads':torch.get_num_threads(), 'sets':{}}
    with tempfile.TemporaryDirectory() as tmp:
        bundle(tmp)
        ours,theirs = from_hf(tmp, device='cpu'),pipeline('text-classification', tmp, device='cpu')
        run = {'ours': lambda texts: ours(texts, top_k=None),
               **{bs:(lambda texts, bs=bs: theirs(texts, batch_size=bs, top_k=None, truncation=True, max_length=256)) for bs in (1,4,8,16,32,64)}}
        for f in (run['ours'],run[1]): f(mix[:50]) # warm
        for name,texts in (('mix',mix),('TREC',trec),('IMDb',imdb)):
            parts = [texts[i::5] for i in range(5)]
            search = {bs:timed(run[bs], parts[0][:400])[0] for bs in run if bs!='ours'}
            best = min(search, key=search.get)
            rows,worst = [],0.
            for i,part in enumerate(parts):
                order = ['ours',1,best][i%2*2::(-1)**i] if best!=1 else ['ours',1][::(-1)**i]
                got = {k:timed(run[k], part) for k in order}
                rows.append({k:t for k,(t,_) in got.items()})
                worst = max(worst, *(np.abs(table(got['ours'][1])-table(o)).max() for k,(_,o) in got.items() if k!='ours'))
                print(name, i, {k:round(t,1) for k,t in rows[-1].items()}, f'{worst:.1e}', flush=True)
            ratio = lambda k: [round(r[k]/r['ours'],3) for r in rows]
            figures['sets'][name] = {'texts':len(texts), 'texts/s':round(len(texts)/sum(r['ours'] for r in rows),1), 'best batch size of the pipeline':best, 'search, s':{k:round(v,2) for k,v in search.items()},
                'times the default pipeline':{'median':float(np.median(ratio(1))), 'each':ratio(1)}, 'times its best batch size':{'median':float(np.median(ratio(best))), 'each':ratio(best)},
                'largest difference of a probability':float(worst)}
    for k,v in figures['sets'].items():
        print(f"{k:5} {v['texts/s']:8.1f} texts/s; x{v['times the default pipeline']['median']:.2f} the default, x{v['times its best batch size']['median']:.2f} batch size {v['best batch size of the pipeline']}; "
              f"probabilities within {v['largest difference of a probability']:.0e}")
    save('predict', args, {'rows':args.rows}, figures)

if __name__=='__main__': main()
