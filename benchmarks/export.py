"""Prediction by onnxruntime, in float32 and int8, against the `Predictor` of torch and the Hugging Face pipeline at its best batch size.

    FASTFORMERS_DATA=... python benchmarks/export.py               # TREC and AG News, 1,000 texts of each
    FASTFORMERS_DATA=... python benchmarks/export.py --rows 200    # a quick look
    FASTFORMERS_DATA=... python benchmarks/export.py --skip 2000   # labels of int8 on rows by which nothing was chosen

MiniLM with Hugging Face's own head, trained on 1,000 rows; timed and compared on others. The rows are cut into five parts, and each part goes through all four in turn, in changing order, on one thread. Times are
seconds of the processor, since the machine may do other work beside. What is reported is the ratio to the pipeline, the median of the parts, and the share of texts with the labels of torch.
"""
import tempfile, time
import numpy as np
from common import *

def timed(f, *args):
    start = time.process_time()
    res = f(*args)
    return time.process_time()-start, [o['label'] for o in res]

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--rows', type=int, default=1000, help='of each data set')
    p.add_argument('--skip', type=int, default=1000, help='rows before them, of which the first 1,000 train')
    args = p.parse_args()
    import torch
    torch.set_num_threads(1)
    from transformers import pipeline
    from transformers.utils import logging as hf_logging
    from fastformers.inference.onnx import to_onnx
    from fastformers.inference.predictor import from_hf
    from fastformers.ulmfit.stage import fine_tune_classifier
    hf_logging.set_verbosity_error(); hf_logging.disable_progress_bar(); quiet()
    figures = {'threads':1, 'sets':{}}
    for name,file in (('TREC','trec/train.csv'), ('AG News','agnews/train_10k.csv.gz')):
        df = read(data_files(file)[0]).sample(frac=1, random_state=0)
        texts = df.text.tolist()[args.skip:args.skip+args.rows]
        with tempfile.TemporaryDirectory() as tmp:
            stage = fine_tune_classifier(df[:1000], 'minilm', f'{tmp}/o', head='hf', max_len=128, epochs=3., refit=False)
            to_onnx(stage.path, int8=True)
            sizes = {o.name:round(o.stat().st_size/1e6, 1) for o in sorted(stage.path.glob('model*'))}
            run = {k:from_hf(stage.path, 'cpu', backend=k) for k in ('torch','onnx','onnx_int8')}
            theirs = pipeline('text-classification', str(stage.path), device='cpu')
            by = {bs:(lambda o, bs=bs: theirs(o, batch_size=bs, truncation=True, max_length=128)) for bs in (1,4,8,16,32)}
            search = {bs:timed(f, texts[:200])[0] for bs,f in by.items()}
            best = min(search, key=search.get)
            run['pipeline'] = by[best]
            for f in run.values(): f(texts[:20]) # warm
            rows,labels = [],{k:[] for k in run}
            for i in range(5):
                order,part = [*run][::1 if i%2 else -1],texts[i::5]
                got = {k:timed(run[k], part) for k in order}
                rows.append({k:t for k,(t,_) in got.items()})
                for k,(_,o) in got.items(): labels[k] += o
                print(name, i, {k:round(t, 2) for k,t in rows[-1].items()}, flush=True)
            figures['sets'][name] = {'texts':len(texts), 'accuracy of the classifier':round(stage.metrics['accuracy'], 3), 'best batch size of the pipeline':best, 'MB':sizes,
                **{k:{'texts/s':round(len(texts)/sum(r[k] for r in rows), 1), 'times the pipeline':round(float(np.median([r['pipeline']/r[k] for r in rows])), 2), 'each':[round(r['pipeline']/r[k], 2) for r in rows],
                      'labels of torch, %':round(100*float(np.mean([a==b for a,b in zip(labels[k], labels['torch'])])), 1)} for k in run}}
    for name,o in figures['sets'].items():
        for k in ('torch','onnx','onnx_int8','pipeline'): print(f"{name:8} {k:10} {o[k]['texts/s']:8.1f} texts/s, x{o[k]['times the pipeline']:.2f} the pipeline, {o[k]['labels of torch, %']} % of the labels")
    save('export', args, {'rows':args.rows}, figures)

if __name__=='__main__': main()
