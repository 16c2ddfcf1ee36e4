"""Few labels: the rates after a probe, the defaults as typed, and what stage 2 brings to a sentence encoder

    FASTFORMERS_DATA=... python benchmarks/few_labels.py rates            # accuracy on 500 training rows that are not trained on
    FASTFORMERS_DATA=... python benchmarks/few_labels.py defaults --final # the same call for five sets and three sizes, beside TF-IDF and the frozen probe
    FASTFORMERS_DATA=... python benchmarks/few_labels.py stage2 --final   # from MiniLM, and from MiniLM after stage 2 on the unlabelled texts
    FASTFORMERS_DATA=... python benchmarks/few_labels.py tfidf --final    # TF-IDF with more labels, up to the whole training file
    FASTFORMERS_DATA=... python benchmarks/few_labels.py pools            # mean or concat, also: entries (of `leaderboard`), both on development rows
    python benchmarks/few_labels.py table                                 # what the rows say
    python benchmarks/few_labels.py picture                               # results/few_labels.png, also nbs/images/few_labels.png

Labelled rows are drawn as they come. Without `--final` other rows of the training file, or the development file, take the place of the test set. Finished rows are in results/few_labels/rows.jsonl, and a second call goes on."""
import torch
from classify import Rows, last_only
from common import *

def clinc(): return [read(o).rename(columns={'domain':'label'}) for o in data_files('clinc150/train.csv.gz', 'clinc150/val.csv.gz', 'clinc150/test.csv.gz')]

def intents77():
    "77 of the 150 intents; `draw` takes five rows of each"
    train,dev,test = (o.assign(label=o.intent) for o in clinc())
    chosen = sorted(train.label.unique())[::2]+sorted(train.label.unique())[1:4:2]
    return [o[o.label.isin(chosen)].reset_index(drop=True) for o in (train,dev,test)]

def held(path, test, n):
    "Read a training file, of which the first `n` rows in a fixed order are for development, and a test file"
    train,test = map(read, data_files(path, test))
    train = train[~train.text.isin(test.text)].drop_duplicates('text').sample(frac=1, random_state=0).reset_index(drop=True)
    return train[n:], train[:n], test.sample(min(2000, len(test)), random_state=0)

sets = {'clinc150':clinc, 'intents77':intents77,
        'trec':lambda: held('trec/train.csv', 'trec/test.csv', 500),
        'agnews':lambda: held('agnews/train_10k.csv.gz', 'agnews/test.csv.gz', 1000),
        'sst2':lambda: held('sst2/train.csv.gz', 'sst2/dev.csv', 1000),
        'imdb':lambda: held('imdb/train.csv.gz', 'imdb/test.csv.gz', 1000)}

def draw(train, n, seed):
    "Draw `n` rows, or five of each class where `n` is 5 a class"
    if n==5: return train.groupby('label', group_keys=False).sample(5, random_state=seed).sample(frac=1, random_state=seed).reset_index(drop=True)
    return train.sample(n, random_state=seed).reset_index(drop=True)

def frozen(df, test, arch, **kwargs):
    "Accuracy on `test` of the probe on all rows of `df`"
    from fastformers.learner.core import classifier_learner
    from fastformers.data.block import classifier_dls
    from fastformers.learner import probe # `fit_probe`
    from fastformers.ulmfit.scores import measure
    from fastformers.ulmfit.stage import labelled_dl
    every = df.assign(is_valid=df.index==0) # one row must be held out
    learn = classifier_learner(classifier_dls(every, arch, **{'max_len':128, **kwargs}), arch, head='linear').fit_probe()
    return float(measure(learn, labelled_dl(learn.dls, test))[1].mean())

def classified(df, test, arch, **kwargs):
    "Accuracy on `test` of the classifier as `fastformers classify` trains it"
    from fastformers.ulmfit.stage import fine_tune_classifier
    start = time.process_time()
    stage = fine_tune_classifier(df, arch, test=test, refit=True, **kwargs)
    return {'default':float(stage.test_score.mean()), 'validation':float(stage.score.mean()), 'steps':len(stage.losses), 'probe kept':stage.probe_kept, 'cpu seconds':round(time.process_time()-start)}

def defaults(args, rows):
    from fastformers.ulmfit.scores import tfidf_hits
    for seed in args.seeds:
        for name in args.sets:
            train,dev,test = sets[name]()
            for n in args.sizes or ([5] if name=='intents77' else [100,500,2000]):
                df,at = draw(train, n, seed),test if args.final else dev
                rows.get(lambda: {**classified(df, at, args.arch), 'probe':frozen(df, at, args.arch), 'TF-IDF':float(tfidf_hits(df, at).mean())},
                         'default', part='defaults', arch=args.arch, set=name, n=n, seed=seed, test=args.final)

def stage2(args, rows):
    from fastformers.ulmfit.stage import fine_tune_lm
    for seed in args.seeds:
        for name in args.sets:
            of = 'clinc150' if name=='intents77' else name
            work = Path(args.work)/f'{of}-{args.arch}-{args.epochs}-{args.keep}-{args.lm_seed}-{args.mask}'
            texts = sets[of]()[0].text
            texts = texts.sample(min(15000, len(texts)), random_state=0).tolist()
            train,dev,test = sets[name]()
            if not (work/'stage.json').exists():
                stage = fine_tune_lm(texts, args.arch, work, epochs=args.epochs, keep_vectors=args.keep, mask_rate=args.mask, seed=args.lm_seed, resume=f'{work}.checkpoints')
                rows.get(lambda: {'lm seconds':round(stage.seconds), 'nll':stage.metrics['loss']}, 'nll', part='lm', arch=args.arch, set=name, epochs=args.epochs, keep=args.keep, lm_seed=args.lm_seed, mask=args.mask)
            for n in args.sizes or ([5] if name=='intents77' else [300] if name=='clinc150' else [100,500]):
                df,at = draw(train, n, seed),test if args.final else dev
                key = dict(part='stage2', arch=args.arch, set=name, n=n, seed=seed, test=args.final)
                rows.get(lambda: {**classified(df, at, args.arch), 'probe':frozen(df, at, args.arch)}, 'default', epochs=0, keep=None, lm_seed=None, **key)
                rows.get(lambda: {**classified(df, at, work), 'probe':frozen(df, at, work)}, 'default', epochs=args.epochs, keep=args.keep, lm_seed=args.lm_seed, mask=args.mask, **key)

def pools(args, rows):
    "Mean or concat vectors, all layers after the probe, without a refit"
    from fastformers.ulmfit.stage import fine_tune_classifier
    for seed in args.seeds:
        for name in args.sets:
            train,dev,_ = sets[name]()
            n = 300 if name=='clinc150' else 100
            for pool in ('concat','mean'):
                def accuracy():
                    stage = fine_tune_classifier(draw(train, n, seed), args.arch, test=dev[:1000], pool=pool, max_len=128, valid_pct=.05 if n>200 else .1)
                    return {'default':float(stage.test_score.mean()), 'probe kept':stage.probe_kept}
                rows.get(accuracy, 'default', part='pools', arch=args.arch, set=name, n=n, seed=seed, pool=pool)

def entries(args, rows):
    "Entries of `leaderboard` on the development rows"
    from fastformers.compare.entries import Rows as Labelled, entries
    from fastformers.tasks.core import SingleLabel
    from fastformers.ulmfit.recipe import Recipe
    for seed in args.seeds:
        for name in args.sets:
            train,dev,_ = sets[name]()
            n = 5 if name=='intents77' else 300 if name=='clinc150' else 100
            task = SingleLabel(sorted(train.label.unique()))
            recipe = Recipe().replace(model=dict(arch=args.arch), lm=dict(objective='none'), classifier=dict(max_len=128))
            def accuracy(entry):
                start = time.process_time()
                predictor = entries[entry].fit(Labelled(draw(train, n, seed), task, recipe, seed=seed))
                found = predictor.scores(dev.text.tolist()).argmax(1).numpy()
                return {'accuracy':float((found==dev.label.map(task.labels.index)).mean()), 'cpu seconds':round(time.process_time()-start)}
            for e in ('frozen probe','all layers','contrastive'):
                rows.get(lambda: accuracy(e), 'accuracy', part='entries', arch=args.arch, set=name, n=n, seed=seed, entry=e)

def rates(args, rows):
    "Train 150 steps of 16 rows or 3 epochs from the probe, from ULMFiT's head, and from random weights of the body too"
    from fastai.torch_core import set_seed
    from fastformers.callback.schedule import full_tune, linear_warmup, probe_first
    from fastformers.data.block import classifier_dls
    from fastformers.learner import probe # `fit_probe`
    from fastformers.learner.core import classifier_learner
    from fastformers.tasks.core import SingleLabel
    labels = {'clinc150':('clinc150/train.csv.gz','domain',300), 'trec':('trec/train.csv','label',500), 'agnews':('agnews/train_10k.csv.gz','label',100)}
    def accuracy(arch, data, seed, start, lr):
        path,label,n = labels[data]
        df = read(*data_files(path)).rename(columns={label:'label'}).sample(n+500, random_state=seed).reset_index(drop=True)
        set_seed(seed)
        task = SingleLabel(sorted(df.label.unique()))
        dls = classifier_dls(df.assign(is_valid=df.index>=n), arch, task=task, bs=16, max_len=128, device='cpu')
        learn = classifier_learner(dls, arch, pretrained=start!='random', head='linear' if start=='probe' else None, precision='fp32', cbs=last_only())
        if start=='probe': learn.fit_probe()
        with learn.no_logging(), learn.no_bar():
            learn.fit_schedule(probe_first if start=='probe' else full_tune, lr, max(3, 150/len(dls.train)), discr=1.11, anneal=linear_warmup)
            return float(learn.validate()[1])
    for start,lrs in (('probe',(2e-4,5e-4,1e-3,2e-3)), ('head',(5e-4,1e-3,2e-3)), ('random',(5e-4,1e-3,2e-3))):
        for lr in lrs:
            for seed in args.seeds:
                for data in labels:
                    rows.get(lambda: {'validation':accuracy(args.arch, data, seed, start, lr)}, part='rates', arch=args.arch, start=start, lr=lr, seed=seed, data=data)

def tfidf(args, rows):
    from fastformers.ulmfit.scores import tfidf_hits
    for seed in args.seeds:
        for name in args.sets:
            train,dev,test = sets[name]()
            for n in [o for o in args.sizes or (50,100,200,300,500,1000,2000,5000) if o<len(train)]+[len(train)]:
                rows.get(lambda: {'TF-IDF':float(tfidf_hits(train.sample(n, random_state=seed), test if args.final else dev).mean())},
                         'TF-IDF', part='tfidf', set=name, n=n, seed=seed, test=args.final)

def picture(args, rows):
    "Accuracy by number of labels: TF-IDF, ours before and after stage 2, and how many labels TF-IDF needs for the same"
    import matplotlib.pyplot as plt
    o = pd.DataFrame(rows.all).query('test==True').assign(stage=lambda x: x.get('epochs', pd.Series(0, x.index)).fillna(0)>0)
    names = [k for k in ('trec','clinc150') if {'tfidf','defaults'} <= {*o[o.set==k].part}]
    fig,axs = plt.subplots(1, len(names), figsize=(5*len(names),3.6), sharey=True, squeeze=False, layout='constrained')
    for ax,name in zip(axs[0], names):
        d = o[(o.set==name) & (o.arch.isna() | (o.arch==args.arch))]
        base = d[d.part=='tfidf'].groupby('n')['TF-IDF'].mean()
        ax.plot(base.index, base, 'o-', color='grey', label='TF-IDF, logistic regression')
        for stage,color,label in ((False,'C0','ours, as typed'), (True,'C1','ours, after stage 2')):
            e = d[d.part.isin(('defaults','stage2')) & (d.stage==stage)].groupby('n').default.mean()
            if len(e): ax.plot(e.index, e, 'o-', color=color, label=label)
            if stage or not len(e): continue
            n,y,most = (n := 100 if name=='trec' else 300), e[n], base.index[-1]
            enough = base.max()>=y
            to = np.exp(np.interp(y, base.cummax(), np.log(base.index))) if enough else most
            ax.annotate('', (to,y), (n,y), arrowprops=dict(arrowstyle='<->', color='black', shrinkA=4))
            ax.text(np.sqrt(n*to), y+.015, f"{'' if enough else 'over '}{to/n:.0f} times fewer labels", ha='center', fontsize=9)
        title = {'trec':'TREC-6: what does a question ask for?', 'clinc150':'CLINC150: ten domains of utterances'}[name]
        ax.set(xscale='log', xlabel='labelled texts', title=title, ylim=(.4,1))
        ax.set_xticks([50,100,300,1000,5000], [50,100,300,'1,000','5,000'])
        ax.minorticks_off()
        ax.grid(alpha=.3)
    axs[0,0].set_ylabel('accuracy on test texts')
    axs[0,-1].legend(loc='lower right', fontsize=9)
    for to in (results, results.parent.parent/'nbs/images'): fig.savefig(to/'few_labels.png', dpi=80)

def table(args, rows):
    o = pd.DataFrame(rows.all)
    def shown(d, by, of):
        if len(d): print(d.groupby(by)[of].mean().round(3).assign(draws=d.groupby(by).size()).to_string(), end='\n\n')
    shown(o[(o.part=='defaults') & (o.test==True)], ['arch','set','n'], ['TF-IDF','probe','default','cpu seconds'])
    shown(o[o.part=='stage2'].fillna({'epochs':0, 'keep':-1}), ['test','arch','set','n','epochs','keep'], ['probe','default'])
    if 'pool' in o: shown(o[o.part=='pools'], ['arch','set','n','pool'], ['default'])
    if 'entry' in o: shown(o[o.part=='entries'], ['arch','set','n','entry'], ['accuracy'])
    if 'start' in o: shown(o[o.part=='rates'], ['arch','start','lr','data'], ['validation'])

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    p.add_argument('part', choices=['rates','pools','entries','defaults','stage2','tfidf','table','picture'])
    p.add_argument('--arch', default='minilm')
    p.add_argument('--sets', default=','.join(sets), type=lambda o: o.split(','))
    p.add_argument('--sizes', type=lambda o: [*map(int, o.split(','))])
    p.add_argument('--seeds', default='1,2,3', type=lambda o: [*map(int, o.split(','))])
    p.add_argument('--epochs', type=float, default=10.)
    p.add_argument('--keep', type=float, default=1., help='weight of KeepVectors')
    p.add_argument('--mask', type=float, help='share of tokens that are predicted; default: 0.15')
    p.add_argument('--lm-seed', type=int, default=42)
    p.add_argument('--work', default='runs/few_labels')
    p.add_argument('--final', action='store_true', help='read the test set, once')
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', datefmt='%H:%M:%S')
    torch.set_num_threads(1)
    quiet()
    rows = Rows(results/'few_labels')
    rows.settings = {} if args.part in ('table','picture') else {'commit':commit, 'precision':os.environ.get('FASTFORMERS_PRECISION','auto')}
    globals()[args.part](args, rows)
