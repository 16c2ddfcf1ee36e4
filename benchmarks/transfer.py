"""Does another labelled set help? RTE and CoLA after SICK, MRPC or STS-B (STILTs), and with all three at once (`AuxiliaryTasks`)

    FASTFORMERS_DATA=... python benchmarks/transfer.py                 # MiniLM, 1,000 rows of each target, three seeds, validation rows drawn from train
    FASTFORMERS_DATA=... python benchmarks/transfer.py --targets rte --seeds 42

Sources have at most 3,000 rows, all texts 128 tokens. Finished rows are kept in results/transfer: the same command goes on after it was stopped.
"""
from classify import Rows, last_only
from common import *
import glue

how = dict(max_len=128, bs=16, lr=1e-4)
sources,epochs = ('sick','mrpc','stsb'),dict(source=2, target=4)

def rows_of(name, n):
    df = glue.load(name, True)[0].drop(columns='is_valid').sample(frac=1, random_state=0)
    return df[:n].reset_index(drop=True)

def target_of(name):
    "1,000 training rows and 500 validation rows of `name`, all from its training file"
    df = rows_of(name, 1500)
    return df.assign(is_valid=df.index>=1000)

def train(df, arch, seed, epochs, path=None, cbs=None):
    from fastformers.ulmfit.stage import fine_tune_classifier
    return fine_tune_classifier(df, arch, path=path, text_col=glue.columns(df), seed=seed, epochs=epochs, cbs=[last_only(), *(cbs or [])], **how)

def fit(work, target, source, seed):
    "The score of `target` in %: accuracy, for CoLA Matthews' r"
    df,arch,cbs = target_of(target),'minilm',[]
    if source in sources:
        arch = work/source
        if not arch.exists(): train(rows_of(source, 3000), 'minilm', 42, epochs['source'], arch)
    if source=='all at once':
        from fastformers.papers.mt_dnn import AuxiliaryTasks
        from fastformers.data.block import classifier_dls
        cbs = [AuxiliaryTasks({k:classifier_dls(o := rows_of(k, 3000), 'minilm', glue.columns(o), bs=how['bs'], max_len=how['max_len'], device='cpu') for k in sources})]
    learn = train(df, arch, seed, epochs['target'], cbs=cbs).learner
    with learn.no_bar(): pred,y = learn.get_preds()
    return {'validation':float(glue.score(glue.sets[target][2], pred.float().numpy(), y.numpy()))}

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--work', type=Path, default=Path('runs/transfer'), help='directory of the classifiers of the sources')
    p.add_argument('--targets', default='rte,cola')
    args = p.parse_args()
    import torch
    torch.set_num_threads(1)
    quiet()
    rows,seeds,figures = Rows(results/'transfer', how=how, epochs=epochs),[int(o) for o in args.seeds.split(',')],{}
    for target in args.targets.split(','):
        got = {s:[rows.get(lambda: fit(args.work, target, s, seed), target=target, source=s, seed=seed)['validation'] for seed in seeds] for s in ('none',*sources,'all at once')}
        figures |= {f'{target}, {s}':stat(v)|({} if s=='none' or len(seeds)<2 else glue.interval(v, got['none'])) for s,v in got.items()}
    save('transfer', args, dict(how=how, epochs=epochs, seeds=seeds), {'scores %':figures})
    for k,v in figures.items(): print(f'  {k:24}', v)

if __name__=='__main__': main()
