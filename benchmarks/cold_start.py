"""Cold start: a new process that opens a bundle with `from_hf` and answers one text, against one that does it with torch and the same Hugging Face classes.

    python benchmarks/cold_start.py

Nothing is downloaded. The two take turns; reported is the median of the ratios pair by pair.
"""
import subprocess, tempfile
import numpy as np
from common import *
from predict import bundle, timed

ours = """import sys
from fastformers.inference.predictor import from_hf
print(from_hf({path!r}, device='cpu')('a fine film')[0]['label'])
assert 'fastai' not in sys.modules"""
theirs = """import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
tok,model = AutoTokenizer.from_pretrained({path!r}), AutoModelForSequenceClassification.from_pretrained({path!r}).eval()
with torch.inference_mode(): p = model(**tok('a fine film', return_tensors='pt')).logits.softmax(-1)[0]
print(model.config.id2label[int(p.argmax())])"""

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--runs', type=int, default=9)
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        bundle(tmp)
        def run(code): return timed(subprocess.run, [sys.executable, '-W', 'ignore', '-c', code.format(path=tmp)], check=True, capture_output=True, text=True, env={**os.environ, 'HF_HUB_OFFLINE':'1'})
        for o in (ours,theirs): run(o) # files into memory
        rows,answers = [],set()
        for i in range(args.runs):
            got = {k:run(c) for k,c in [('ours',ours),('theirs',theirs)][::(-1)**i]}
            rows.append((got['ours'][0], got['theirs'][0])); answers |= {o.stdout.strip() for _,o in got.values()}
        assert len(answers)==1, answers
    ratios = [a/b for a,b in rows]
    figures = {'seconds ours':stat([a for a,_ in rows]), 'seconds transformers':stat([b for _,b in rows]), 'ratio':{'median':round(float(np.median(ratios)),3), 'each':[round(o,3) for o in ratios]}}
    print(f"ratio {figures['ratio']['median']} ({min(ratios):.2f} to {max(ratios):.2f}); {figures['seconds ours']['mean']} s against {figures['seconds transformers']['mean']} s")
    save('cold_start', args, {'runs':args.runs}, figures)

if __name__=='__main__': main()
