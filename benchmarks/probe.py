"Rates after a linear probe, beside ULMFiT's head and random weights: accuracy on 500 training rows that are not trained on"
import sys
from classify import Rows, last_only
from common import commit, data_files, read, results

sets = {'clinc150':('clinc150/train.csv.gz','domain',300), 'trec':('trec/train.csv','label',500), 'agnews':('agnews/train_10k.csv.gz','label',100)}

def accuracy(arch, data, seed, start, lr):
    "Train 150 steps of 16 rows or 3 epochs; `start` is 'probe', 'head' (ULMFiT's) or 'random' (weights of the body too)"
    from fastai.torch_core import set_seed
    from fastformers.callback.schedule import full_tune, linear_warmup, probe_first
    from fastformers.data.block import classifier_dls
    from fastformers.learner import probe # `fit_probe`
    from fastformers.learner.core import classifier_learner
    from fastformers.tasks.core import SingleLabel
    path,label,n = sets[data]
    df = read(*data_files(path)).rename(columns={label:'label'}).sample(n+500, random_state=seed).reset_index(drop=True)
    set_seed(seed)
    task = SingleLabel(sorted(df.label.unique()))
    dls = classifier_dls(df.assign(is_valid=df.index>=n), arch, task=task, bs=16, max_len=128, device='cpu')
    learn = classifier_learner(dls, arch, pretrained=start!='random', head='linear' if start=='probe' else None, precision='fp32', cbs=last_only())
    if start=='probe': learn.fit_probe()
    with learn.no_logging(), learn.no_bar():
        learn.fit_schedule(probe_first if start=='probe' else full_tune, lr, max(3, 150/len(dls.train)), discr=1.11, anneal=linear_warmup)
        return float(learn.validate()[1])

if __name__=='__main__':
    rows = Rows(results/'probe', commit=commit)
    for arch in sys.argv[1:] or ['wiki-mini']:
        for start,lrs in (('probe',(2e-4,5e-4,1e-3,2e-3)), ('head',(5e-4,1e-3,2e-3)), ('random',(5e-4,1e-3,2e-3))):
            for lr in lrs:
                for seed in (1,2):
                    for data in sets:
                        rows.get(lambda: {'validation':accuracy(arch, data, seed, start, lr)}, arch=arch, start=start, lr=lr, seed=seed, data=data)
