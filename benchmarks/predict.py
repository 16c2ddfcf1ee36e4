"""Batch prediction: `Predictor` as typed and in float32 against the Hugging Face pipeline and a bare loop, the same weights, order kept, texts cut at 256 tokens.

    FASTFORMERS_DATA=... python benchmarks/predict.py              # 5,000 TREC questions, 5,000 IMDb reviews, and both mixed
    FASTFORMERS_DATA=... python benchmarks/predict.py --rows 500   # a quick look

MiniLM with Hugging Face's own classification head, trained on 400 questions and 400 reviews for eight classes: the kinds of question, positive and negative. Timed are other rows, in seconds of the processor and one
thread, since the machine may do other work beside. The rows are cut into five parts; each part goes through all in turn, in changing order, and what is reported is the ratio, the median of the parts. The pipeline's
best batch size is searched on the first part of each set, among 1 (its default), 4, 8, 16, 32 and 64. The bare loop sorts by length and makes batches of 1,024 tokens. As typed, `Predictor` computes in bfloat16 where the
processor has units for it, else in float32.
"""
import random, tempfile, time
import numpy as np
from common import *

def timed(f, *args):
    start = time.process_time()
    res = f(*args)
    return time.process_time()-start, res

def bare(path):
    "The limit: texts sorted by length, batches of 1,024 tokens, the network of `transformers` and nothing else"
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    tok,model = AutoTokenizer.from_pretrained(path),AutoModelForSequenceClassification.from_pretrained(path).eval()
    @torch.no_grad()
    def f(texts):
        ids = tok(texts, truncation=True, max_length=256)['input_ids']
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        out = [None]*len(ids)
        while order:
            k = 1
            while k<len(order) and (k+1)*len(ids[order[k]])<=1024: k += 1
            part,order = order[:k],order[k:]
            for i,o in zip(part, model(**tok.pad({'input_ids':[ids[i] for i in part]}, return_tensors='pt')).logits.softmax(-1)): out[i] = o.numpy()
        return np.stack(out)
    return f

def table(out): return out if isinstance(out, np.ndarray) else np.array([[o['score'] for o in sorted(r, key=lambda o: o['label'])] for r in out])

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--rows', type=int, default=5000, help='of each data set')
    args = p.parse_args()
    import torch
    torch.set_num_threads(1)
    quiet()
    from transformers import pipeline
    from transformers.utils import logging as hf_logging
    from fastformers.inference.predictor import from_hf
    from fastformers.ulmfit.stage import fine_tune_classifier
    hf_logging.set_verbosity_error(); hf_logging.disable_progress_bar()
    trec,imdb = (read(o)[['text','label']].astype({'label':str}).sample(frac=1, random_state=0) for o in data_files('trec/train.csv', 'imdb/train.csv.gz'))
    figures = {'threads':1, 'sets':{}}
    with tempfile.TemporaryDirectory() as tmp:
        stage = fine_tune_classifier(pd.concat([trec[:400], imdb[:400]]), 'minilm', f'{tmp}/o', head='hf', max_len=256, windows=1, epochs=6, refit=False)
        path = str(stage.path)
        trec,imdb = (o.text.tolist()[400:400+args.rows] for o in (trec, imdb))
        mix = trec+imdb
        random.Random(0).shuffle(mix)
        typed,plain,theirs,loop = from_hf(path, device='cpu'),from_hf(path, device='cpu', precision='fp32'),pipeline('text-classification', path, device='cpu'),bare(path)
        figures |= {'as typed':'bf16' if typed.autocast else 'fp32', 'held-out accuracy':round(stage.metrics['accuracy'], 3)}
        sizes = (1,4,8,16,32,64)
        run = {'as typed':lambda texts: typed(texts, top_k=None), 'float32':lambda texts: plain(texts, top_k=None), 'bare loop':loop,
               **{bs:(lambda texts, bs=bs: theirs(texts, batch_size=bs, top_k=None, truncation=True, max_length=256)) for bs in sizes}}
        for f in run.values(): f(mix[:20]) # warm
        for name,texts in (('mix',mix),('TREC',trec),('IMDb',imdb)):
            parts = [texts[i::5] for i in range(5)]
            search = {bs:timed(run[bs], parts[0][:200])[0] for bs in sizes}
            best = min(search, key=search.get)
            rows,worst,same = [],dict.fromkeys(('as typed','float32'), 0.),{k:[] for k in ('as typed','float32')}
            for i,part in enumerate(parts):
                got = {k:timed(run[k], part) for k in [*dict.fromkeys(('as typed','float32','bare loop',1,best))][::1 if i%2 else -1]}
                rows.append({k:t for k,(t,_) in got.items()})
                his = table(got[1][1])
                for k in worst:
                    ours = table(got[k][1])
                    worst[k] = max(worst[k], float(np.abs(ours-his).max()))
                    same[k] += (ours.argmax(1)==his.argmax(1)).tolist()
                print(name, i, {k:round(t,1) for k,t in rows[-1].items()}, {k:f'{v:.0e}' for k,v in worst.items()}, flush=True)
            def ratio(k, ours): return dict(median=float(np.median(each := [round(r[k]/r[ours],3) for r in rows])), each=each)
            figures['sets'][name] = {'texts':len(texts), 'best batch size of the pipeline':best, 'search, s':{k:round(v,2) for k,v in search.items()},
                **{k:{'texts/s':round(len(texts)/sum(r[k] for r in rows),1), 'times the default pipeline':ratio(1, k), 'times its best batch size':ratio(best, k), 'times the bare loop':ratio('bare loop', k),
                      'labels of the pipeline, %':round(100*float(np.mean(same[k])), 2), 'largest difference of a probability':worst[k]} for k in worst}}
    for k,v in figures['sets'].items():
        for how in ('as typed','float32'):
            o = v[how]
            print(f"{k:5} {how:8} {o['texts/s']:8.1f} texts/s; " + ', '.join(f"x{o[f'times {a}']['median']:.2f} {a[4:] if a.startswith('the ') else a}" for a in ('the default pipeline','its best batch size','the bare loop')),
                  f"{o['labels of the pipeline, %']} % of the labels, probabilities within {o['largest difference of a probability']:.0e}", sep='; ')
    save('predict', args, {'rows':args.rows}, figures)

if __name__=='__main__': main()
