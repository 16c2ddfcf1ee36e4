"""What a vocabulary of 250,000 tokens costs while a classifier trains: seconds of processor time for a step, and peak memory, with all rows of the embeddings and with those in use

    python benchmarks/vocabulary.py DIR      # of multilingual-e5-small (12 layers x 384, 250,037 tokens); six minutes on two cores

MiniLM (6 layers x 384, 30,522 tokens) beside it, 16 of 600 utterances of CLINC150 in a step, float32. Twelve steps of each take turns; memory is that of a process of its own, 12 steps with all layers open.
"""
import os, time
from functools import partial
from unittest import mock
os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ.update(HF_HUB_OFFLINE='1', FASTFORMERS_PRECISION='fp32', TOKENIZERS_PARALLELISM='false')
from timing import *
from common import save

def make(arch, rows):
    "A learner of all layers; `rows`: train the rows in use, as by default"
    import torch
    from fastai.basics import Callback, defaults
    from fastai.callback.progress import ProgressCallback
    from fastformers.data.block import classifier_dls
    from fastformers.learner import core
    from fastformers.text.corpora import intents
    torch.set_num_threads(1)
    class Steps(Callback):
        order = 2000
        def before_train(self): self.at,self.learn.steps = time.process_time(),[]
        def after_batch(self):
            if not self.training: return
            now = time.process_time()
            self.learn.steps.append(now-self.at)
            self.at = now
            if len(self.learn.steps)==12: raise KeyboardInterrupt
    defaults.callbacks = [o for o in defaults.callbacks if o is not ProgressCallback]
    dls = classifier_dls(intents(600), arch, bs=16, device='cpu')
    with mock.patch.object(core, 'train_own_rows', core.train_own_rows if rows else lambda learn: None):
        return core.classifier_learner(dls, arch, head_init='random', cbs=Steps())

def step(learn):
    "Median seconds of processor time of the last ten of twelve steps"
    with learn.no_logging():
        try: learn.fit(1)
        except KeyboardInterrupt: pass
    return float(np.median(learn.steps[2:]))

def peak(arch, rows):
    with Peak() as p: step(make(arch, rows))
    return p.mb

def main():
    p = parser(__doc__, 5)
    p.add_argument('arch', help='directory of multilingual-e5-small')
    args = p.parse_args()
    arms = {(k, 'rows' if rows else 'whole'):(arch, rows) for k,arch in dict(MiniLM='minilm', e5=args.arch).items() for rows in (False,True)}
    peaks = {' '.join(k):round(in_fresh_process(peak, *o)) for k,o in arms.items()}
    print(peaks)
    learners = {' '.join(k):make(*o) for k,o in arms.items()}
    sizes = {k:learn.model.body.get_input_embeddings() for k,learn in learners.items()}
    sizes = {k:next(o.parameters()).shape[0] for k,o in sizes.items()}
    s = in_turn({k:partial(step, o) for k,o in learners.items()}, args.repeats, lambda o: f'{o:8.3f} s')
    save('vocabulary', args, dict(repeats=args.repeats, threads=1), {'rows that train':sizes, 'peak MB':peaks, 'cpu s a step':{k:spread(v) for k,v in s.items()}, 'targets':targets(
        ('V1 e5: step, times that of MiniLM', ratio(s['e5 rows'], s['MiniLM rows']), '<=', 2.3),
        ('   all rows train, in both', ratio(s['e5 whole'], s['MiniLM whole']), '', None),
        ('   e5 with all rows, times e5', ratio(s['e5 whole'], s['e5 rows']), '', None),
        ('   MiniLM with all rows, times MiniLM', ratio(s['MiniLM whole'], s['MiniLM rows']), '', None),
        ('V1 e5: MB less at the peak', peaks['e5 whole']-peaks['e5 rows'], '>=', 700))})

if __name__=='__main__': main()
