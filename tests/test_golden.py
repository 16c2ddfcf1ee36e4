"Fifty training losses of four tiny networks, as they were when their files were written: `python tests/test_golden.py --write`"
import json, sys
from pathlib import Path
import pandas as pd, pytest, torch, transformers
from packaging.version import Version
from fastai.basics import Callback
from fastai.torch_core import set_seed
from fastformers.all import CLM, MLM, classifier_dls, classifier_learner, gradual_unfreeze, lm_dls, lm_learner
from fastformers.testing import tiny_arch, tiny_tok

pytestmark = pytest.mark.exact

good = """The soup was hot and the bread was fresh.
I loved every page of this book.
A warm and funny film with a clever ending.
The phone is light, fast and easy to use.
Our room had a view of the sea.
The waiter was kind and the coffee was strong.
My daughter plays with it every day.
Great sound for a small price.
They sent a new one within two days.
The garden is quiet and the beds are soft.
She sings better than on the first record.
It fits, it looks good, and it was cheap.""".splitlines()
bad = """The soup was cold and the bread was old.
I stopped reading after twenty pages.
A slow and silly film without an ending.
The phone is heavy, hot and hard to use.
Our room had a view of a wall.
The waiter was rude and the coffee was weak.
My daughter broke it on the first day.
Thin sound for a high price.
They never answered my letters.
The street is loud and the beds are hard.
She sings as if she were asleep.
It does not fit, and they keep the money.""".splitlines()
texts = [o for pair in zip(good, bad) for o in pair]
tagged = """Anna/PER lives in Oslo/LOC
Tom/PER saw the sea near Lima/LOC
the train to Rome/LOC was late
Maria/PER and John/PER play the guitar
nobody came to the meeting
it rained in Bern/LOC for three days
John/PER moved from Paris/LOC to Oslo/LOC
the old theatre in Rome/LOC burned down
Ada/PER opened a shop in Lima/LOC
we met Anna/PER at the lake
Tom/PER answered Maria/PER at once
the river is high in Paris/LOC""".splitlines()
words = [[w.partition('/')[::2] for w in o.split()] for o in tagged]

def valid(n): return [i%4==3 for i in range(n)]
def language_model(family, objective):
    tok,df = tiny_tok(family),pd.DataFrame(dict(text=texts, is_valid=valid(len(texts))))
    dls = lm_dls(df, tok, objective(tok, seed=1), seq_len=32, bs=2, device='cpu')
    return lm_learner(dls, tiny_arch(family), precision='fp32')

def classifier(family, **columns):
    df = pd.DataFrame(dict(columns, is_valid=valid(len(columns['text']))))
    dls = classifier_dls(df, tiny_tok(family), bs=4, device='cpu')
    learn = classifier_learner(dls, tiny_arch(family), precision='fp32')
    if family=='modernbert': # its first weights are drawn by `trunc_normal_`, otherwise in each version of torch
        for p in learn.model.parameters():
            if p.dim()>1: torch.nn.init.normal_(p.data, std=.02)
    return learn

runs = dict(
    mlm = lambda: language_model('bert', MLM),
    clm = lambda: language_model('gpt2', CLM),
    classifier = lambda: classifier('modernbert', text=texts, label=['good','bad']*len(good)),
    tags = lambda: classifier('bert', text=[[w for w,_ in o] for o in words], label=[[t or 'O' for _,t in o] for o in words]))

class Losses(Callback):
    run_valid = False
    def __init__(self): self.seen = []
    def after_loss(self): self.seen.append(self.learn.loss.item())

def losses(name, n=50):
    "The first `n` training losses of run `name`, on one thread"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        set_seed(1)
        learn = runs[name]()
        kept,epochs = Losses(),-(-n//len(learn.dls.train))
        with learn.no_bar(), learn.no_logging(), learn.added_cbs(kept):
            if name=='classifier': learn.fit_schedule(gradual_unfreeze, lr=1e-3, epochs=epochs)
            else: learn.fit_one_cycle(epochs, 1e-3)
        return kept.seen[:n]
    finally: torch.set_num_threads(threads)

def file(name): return Path(__file__).parent/'golden'/f'{name}.json'
def machine(): return dict(torch=torch.__version__, cpu=torch.backends.cpu.get_cpu_capability())

@pytest.mark.parametrize('name', runs)
def test_losses_are_those_of_the_file(name):
    kept = json.loads(file(name).read_text())
    if Version(transformers.__version__)<Version(kept['transformers']): pytest.skip('an older transformers draws other first weights')
    now = losses(name)
    assert len(kept['losses'])==len(now)==50
    if {k:kept[k] for k in machine()}==machine(): assert now==kept['losses']
    else: assert now==pytest.approx(kept['losses'], rel=1e-5)

if __name__=='__main__' and sys.argv[1:]==['--write']:
    for o in runs: file(o).write_text(json.dumps(dict(machine(), transformers=transformers.__version__, losses=losses(o)), indent=1)+'\n')
