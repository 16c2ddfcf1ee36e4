"""TREC-6: a committee of MiniLMs distilled into one, and into one of three layers

    FASTFORMERS_DATA=... python benchmarks/distil.py --work DIR                 # two of five folds of the training questions; no test question is read
    FASTFORMERS_DATA=... python benchmarks/distil.py --work DIR --folds 0

On each fold: three members (seeds), the mean of their probabilities, and students with the members' settings and two epochs more: the whole network and its layers 1, 3 and 5, each with the labels alone and with the committee's probabilities at weight 0.7 and temperature 2; the three layers also for twelve epochs, and on unlabelled questions as well, from TyDi QA and MLQA, with the committee's answers as their labels.
`--work` keeps the members and finished rows: the same command goes on after it was stopped.
"""
from classify import Rows, last_only
from common import *
import trec_adapt

members,epochs,half = (42,43,44),4,(1,3,5)
students = {'alone':dict(), 'distilled':dict(teacher=True), 'three layers alone':dict(keep=half), 'three layers distilled':dict(keep=half, teacher=True),
            'three layers alone, twelve epochs':dict(keep=half, epochs=12), 'three layers distilled, twelve epochs':dict(keep=half, teacher=True, epochs=12),
            'three layers distilled, unlabelled questions':dict(keep=half, teacher=True, unlabelled=True)}

def other_questions(df):
    "Questions of two sets of question answering that are not among those of `df`"
    texts = pd.concat([read(o).question for o in data_files('qa_en/tydiqa_train.csv.gz', 'qa_en/mlqa_dev.csv.gz')]).str.strip().drop_duplicates()
    def plain(o): return o.str.lower().str.findall(r'\w+').str.join(' ') # TREC writes its marks apart
    return texts[~plain(texts).isin(plain(df.text))].tolist()

def trained(df, seed, epochs=epochs+2, keep=None, teacher=None):
    from fastai.torch_core import set_seed
    from fastformers.callback.distil import Distil, keep_layers
    from fastformers.callback.schedule import full_tune
    from fastformers.data.block import classifier_dls
    from fastformers.learner.core import classifier_learner
    set_seed(seed)
    learn = classifier_learner(classifier_dls(df, 'minilm', bs=32, seed=seed, device='cpu'), 'minilm', precision='fp32',
                               cbs=[last_only(), *([Distil(teacher, weight=.7)] if teacher else [])])
    if keep: keep_layers(learn.model, keep)
    with learn.no_logging(), learn.no_bar(): learn.fit_schedule(full_tune, 2e-4, epochs, discr=1.11)
    return learn

def error(learn):
    with learn.no_bar(): p,y = learn.get_preds()
    return {'held out':100*float((p.argmax(1)!=y).float().mean())}

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--work', type=Path, default=Path('runs/distil'), help='directory of members and finished rows')
    p.add_argument('--folds', default='0,1')
    args = p.parse_args()
    import torch
    from fastformers.inference.predictor import Ensemble, from_hf
    torch.set_num_threads(1)
    quiet()
    (df,test),rows = trec_adapt.load(),Rows(args.work, epochs=epochs)
    questions = other_questions(pd.concat([df, test]))
    fold = trec_adapt.fold_of(df)
    for k in map(int, args.folds.split(',')):
        held = df.assign(is_valid=fold==k)
        def member(seed):
            learn = trained(held, seed, epochs)
            learn.save_encoder(args.work/f'fold{k}_{seed}')
            return error(learn)
        for seed in members: rows.get(lambda: member(seed), 'held out', arm='member', fold=k, seed=seed)
        committee = Ensemble([from_hf(args.work/f'fold{k}_{seed}') for seed in members])
        def together():
            test = held[held.is_valid]
            return {'held out':100*float(np.mean([o['label']!=y for o,y in zip(committee(test.text.tolist()), test.label)]))}
        rows.get(together, 'held out', arm='committee', fold=k, seed=0)
        def student(teacher=False, unlabelled=False, **how):
            more = [pd.DataFrame(committee(questions)).assign(text=questions, is_valid=False)] if unlabelled else []
            return error(trained(pd.concat([held, *more], ignore_index=True), 50, teacher=committee if teacher else None, **how))
        for arm,how in students.items(): rows.get(lambda: student(**how), 'held out', arm=arm, fold=k, seed=50)
    got = pd.DataFrame([o for o in rows.all if o['fold'] in map(int, args.folds.split(','))])
    by = got.groupby(['arm','fold'], sort=False)['held out'].mean().unstack()
    by['mean'] = by.mean(axis=1)
    print(by.round(2))
    save('distil', args, dict(members=members, epochs=epochs, layers=half), {'error %':by.round(2).rename(columns=str).T.to_dict()})

if __name__=='__main__': main()
