"What benchmarks of classifiers share: one way to train one, and a table that goes on where it was stopped"
import json, time
from pathlib import Path

def trained(df, seed, arch='minilm', lr=2e-4, epochs=3, bs=16, max_len=None, pool='concat', hidden_states=-1, pretrained=True, head_init='random', schedule='full_tune', discr=1., anneal='one_cycle', width=None, lm=None, r_drop=None):
    "The learner of a classifier; `width` of adapters, weights `lm` of the auxiliary loss and `r_drop` of R-Drop's divergence"
    from fastai.torch_core import set_seed
    from fastformers.callback import schedule as schedules
    from fastformers.models.adapters import add_adapters
    from fastformers.callback.auxiliary_lm import AuxiliaryLM
    from fastformers.data.block import classifier_dls
    from fastformers.learner.core import classifier_learner
    from fastformers.callback.regularize import RDrop
    from fastformers.callback.compute import cpu_bf16
    set_seed(seed)
    dls = classifier_dls(df, arch, bs=bs, seed=seed, max_len=max_len, device='cpu')
    learn = classifier_learner(dls, arch, head_init=head_init, pretrained=pretrained, pool=pool, hidden_states=hidden_states,
                               cbs=[cpu_bf16(), last_only(), *([AuxiliaryLM(lm)] if lm else []), *([RDrop(r_drop)] if r_drop else [])])
    if width: add_adapters(learn.model, width)
    with learn.no_logging(): learn.fit_schedule(getattr(schedules, schedule), lr, epochs, discr=discr, anneal=getattr(schedules, anneal))
    return learn

def train(*args, **kwargs):
    "Error in % on the validation rows of the DataFrame; arguments as for `trained`"
    return 100*(1-float(trained(*args, **kwargs).validate()[1]))

def last_only():
    "A callback that leaves out all validations of a fit but the last"
    from fastai.callback.core import Callback, CancelValidException
    class LastOnly(Callback):
        trained = False
        def before_train(self): self.trained = True
        def before_validate(self):
            mid,self.trained = self.trained and self.epoch<self.n_epoch-1,False
            if mid: raise CancelValidException()
    return LastOnly()

class Rows:
    "Finished rows of a table in `work`/rows.jsonl, each with the `settings` it was made with; those of other settings count as not there"
    def __init__(self, work, **settings):
        self.path,self.settings = Path(work)/'rows.jsonl',json.loads(json.dumps(settings, default=str))
        self.path.parent.mkdir(parents=True, exist_ok=True)
    @property
    def all(self):
        rows = [json.loads(l) for l in self.path.read_text().splitlines()] if self.path.exists() else []
        return [o for o in rows if all(o.get(k)==v for k,v in self.settings.items())]
    def get(self, make, need='validation', **key):
        "The row of `key` with a figure `need`; made now if it is not there"
        key = json.loads(json.dumps(key, default=str))
        for o in self.all:
            if need in o and all(o.get(k)==v for k,v in key.items()): return o
        start = time.time()
        o = {**self.settings, **key, **make(), 'minutes':round((time.time()-start)/60, 2)}
        with self.path.open('a') as f: f.write(json.dumps(o)+'\n')
        print(o, flush=True)
        return o
