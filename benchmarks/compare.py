"""Ways to make a classifier on the same rows: the entries of `leaderboard`, SetFit and Hugging Face's `Trainer`

    FASTFORMERS_DATA=... python benchmarks/compare.py rates          # a rate of the Trainer for each set, of four, on one draw and development rows
    FASTFORMERS_DATA=... python benchmarks/compare.py run --final    # every arm of `--arms` on three draws, test rows
    FASTFORMERS_DATA=... python benchmarks/compare.py choose --final # the classifier that `leaderboard` hands out after `--minutes`, of the entries in `--arms`
    FASTFORMERS_DATA=... python benchmarks/compare.py near           # do near texts have one label, and do labels that spread gain?
    python benchmarks/compare.py table                               # what the rows say
    python benchmarks/compare.py picture                             # results/few_labels.png, also nbs/images/few_labels.png

Labels are classes, several labels a text (`goemotions`), a number of a pair (`stsb`, `sick`) and classes of a pair (`mrpc`, `rte`, `sick3`); the score is accuracy, F1 of a text, or Pearson's r. Labelled rows are drawn as they come, but five of each class for `intents77`, which after masked LM took the language model of `clinc150` (a link of its directory in `--work`). Without `--final` development rows take the place of the test rows.
Finished rows are in results/compare/rows.jsonl, and a second call goes on; with `--anew`, rows of other commits are made again beside them. `hits` are the test rows that an arm got right, packed."""
import tempfile, torch
from dataclasses import replace
from classify import Rows as Table
from common import *
from fastformers.compare import entries as ways
from fastformers.callback import progress
from fastformers.compare.entries import Entry, entries, entry, entry_rows
from fastformers.data.labels import read_labels
from fastformers.data.rows import Rows
from fastformers.inference.stage_json import versions
from fastformers.text.encode import read_column
from fastformers.ulmfit.recipe import TaskConfig

def clinc(): return [read(o).rename(columns={'domain':'label'}) for o in data_files('clinc150/train.csv.gz', 'clinc150/val.csv.gz', 'clinc150/test.csv.gz')]

def intents77():
    "77 of the 150 intents"
    train,dev,test = (o.assign(label=o.intent) for o in clinc())
    chosen = sorted(train.label.unique())[::2]+sorted(train.label.unique())[1:4:2]
    return [o[o.label.isin(chosen)].reset_index(drop=True) for o in (train,dev,test)]

def held(path, test, n, most=2000):
    "Read a training file, of which the first `n` rows in a fixed order are for development, and a test file"
    train,test = map(read, data_files(path, test))
    train = train[~train.text.isin(test.text)].drop_duplicates('text').sample(frac=1, random_state=0).reset_index(drop=True)
    return train[n:], train[:n], test.sample(min(most, len(test)), random_state=0)

def pairs(name, label='label', n=500, most=2000):
    "Rows of two texts with a class or a number; the file for development where there is one, or the first `n` rows in a fixed order"
    files = [f'{name}/train.csv', *([f'{name}/dev.csv'] if name in ('stsb','sick') else []), f'{name}/test.csv']
    parts = [read(o)[['text_a','text_b',label]].set_axis(['text_a','text_b','label'], axis=1) for o in data_files(*files)]
    train,*dev,test = (o.drop_duplicates().sample(frac=1, random_state=0).reset_index(drop=True) for o in parts)
    return train if dev else train[n:], *(dev or [train[:n]]), test[:most]

def beginnings(words=100):
    "IMDb's reviews, of each the first `words`, which are about 128 tokens"
    return [o.assign(text=o.text.str.split().str[:words].str.join(' ')) for o in sets['imdb'][1]()]

sets = { # numbers of labelled rows, reader of training, development and test rows
    'clinc150':((300,), clinc), 'intents77':((5,), intents77),
    'trec':((500,100), lambda: held('trec/train.csv', 'trec/test.csv', 500)),
    'agnews':((400,), lambda: held('agnews/train_10k.csv.gz', 'agnews/test.csv.gz', 1000)),
    'sst2':((500,), lambda: held('sst2/train.csv.gz', 'sst2/dev.csv', 1000)),
    'imdb':((100,500), lambda: held('imdb/train.csv.gz', 'imdb/test.csv.gz', 400, 1000)),
    'imdb100':((100,500,2000), beginnings),
    'goemotions':((500,2000), lambda: [read(o).rename(columns={'labels':'label'})[:n] for o,n in zip(data_files('goemotions/train.csv.gz', 'goemotions/dev.csv', 'goemotions/test.csv'), (None,1000,2000))]),
    'stsb':((300,1000), lambda: pairs('stsb', 'score')), 'sick':((300,1000), lambda: pairs('sick', 'score')),
    'sick3':((500,), lambda: pairs('sick')), 'mrpc':((500,), lambda: pairs('mrpc')), 'rte':((500,), lambda: pairs('rte'))}

def draw(train, n, seed):
    "Draw `n` rows, or five of each class where `n` is 5"
    if n==5: return train.groupby('label', group_keys=False).sample(5, random_state=seed).sample(frac=1, random_state=seed).reset_index(drop=True)
    return train.sample(n, random_state=seed).reset_index(drop=True)

class Peer:
    "A predictor of another library"
    def __init__(self, scores): self.scores = lambda texts: torch.as_tensor(np.asarray(scores(texts)))

@entry('SetFit', ('arch','one class'))
def setfit(rows):
    "SetFit 1.2 with its own rates, one epoch of the 40 pairs a text of its paper"
    import builtins, pyarrow
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments
    from fastformers.hub import resolve_arch
    builtins.MonthDayNano = pyarrow.MonthDayNano # where `datasets` looks for it when it hashes a function
    model = SetFitModel.from_pretrained(resolve_arch(rows.plan['arch']), labels=rows.task.labels)
    data = Dataset.from_dict({'text':rows.texts, 'label':[rows.task.labels.index(o) for o in rows.labels]})
    with tempfile.TemporaryDirectory() as tmp:
        args = TrainingArguments(tmp, num_iterations=20, seed=rows.plan['seed'], report_to='none', save_strategy='no', show_progress_bar=False)
        Trainer(model, args, train_dataset=data).train()
    return Peer(lambda texts: model.predict_proba(list(texts)))

@entry('linear, tuned', ('texts','one class'))
def tuned(rows):
    "scikit-learn's logistic regression on words, pairs of words and parts of words, its penalty chosen in five folds"
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, KFold
    from sklearn.pipeline import make_union
    both = make_union(TfidfVectorizer(ngram_range=(1,2), sublinear_tf=True), TfidfVectorizer(analyzer='char_wb', ngram_range=(2,5), sublinear_tf=True))
    x,y = both.fit_transform(rows.texts),np.array([rows.task.labels.index(o) for o in rows.labels])
    grid = GridSearchCV(LogisticRegression(max_iter=1000), dict(C=[1,5,25,125,625]), cv=KFold(5, shuffle=True, random_state=rows.plan['seed'])).fit(x, y)
    def scores(texts):
        res = np.zeros((len(texts), rows.task.n_out))
        res[:,grid.classes_] = grid.predict_proba(both.transform(texts))
        return res
    return Peer(scores)

@entry('as typed', 'arch')
def as_typed(rows, arch=None, unlabelled=None, **kwargs):
    "`fastformers classify` without flags"
    from fastformers.inference.predictor import from_hf
    from fastformers.ulmfit.stage import fine_tune_classifier
    from fastformers.stats import mean_interval
    with tempfile.TemporaryDirectory() as tmp:
        stage = fine_tune_classifier(rows.df, arch or rows.plan['arch'], f'{tmp}/classifier', text_col=rows.text_col, seed=rows.plan['seed'], unlabelled=unlabelled, **dict(refit=True) | kwargs)
        res = from_hf(f'{tmp}/classifier')
        res.printed = [round(float(o), 4) for o in mean_interval(stage.score)] # accuracy on held-out rows and its interval, before it was trained on all
        return res

@entry('together', 'arch')
def together(rows):
    "`fastformers classify --pairing together`: the network reads both texts at once"
    return as_typed(rows, pairing='together')

@entry('windows=8 before', 'arch')
def former(rows):
    "`fastformers classify --windows 8` with the defaults before the probe: a random head, four epochs of batches of 32 at 2e-4"
    return as_typed(rows, windows=8, head_init='random', epochs=4, lr=2e-4, bs=32, anneal='one_cycle', refit=False)

def masked(rows):
    "Stage 2 by masked LM with kept vectors, as it was until 29 November; its figures are of --epochs 10"
    o = ways.planned(rows, lm=rows.plan['lm'] | dict(objective='mlm'))
    o.work = rows.work/'masked'
    return ways.adapted(o)

@entry('as typed after masked LM', ('arch','unlabelled'), prepare=masked)
def after_masked(rows):
    "`fastformers adapt --objective mlm`, then `classify`"
    return as_typed(rows, masked(rows))

@entry('label spreading after masked LM', ('arch','unlabelled'), prepare=masked)
def both(rows):
    "`fastformers adapt --objective mlm`, then `classify --unlabelled`"
    return as_typed(rows, masked(rows), rows.unlabelled)

@entry('frozen probe after stage 2', ('arch','unlabelled'), prepare=ways.adapted, classifier=dict(epochs=0.))
def probe_after(rows):
    "`fastformers adapt`, then the entry `frozen probe`"
    return entries['frozen probe'].fit(ways.planned(rows, arch=str(ways.adapted(rows))))

def trainer(rows, lr, seconds=None, times=1):
    "The Trainer with its own head and defaults, as many rows a batch as ours has and `times` as many steps, or as many as fit into `seconds` of a core, a tenth of them warm-up"
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments, set_seed
    from fastformers.models.fast_cpu import bf16_faster
    from fastformers.hub import resolve_arch
    path = resolve_arch(rows.plan['arch'])
    tok = AutoTokenizer.from_pretrained(path)
    def data(texts, labels=None):
        res = tok(list(texts), truncation=True, max_length=512)['input_ids']
        return [{'input_ids':o, **({} if labels is None else {'labels':rows.task.labels.index(labels[i])})} for i,o in enumerate(res)]
    def trained(tmp, steps=-1):
        set_seed(rows.plan['seed'])
        model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=rows.task.n_out)
        args = TrainingArguments(tmp, num_train_epochs=times*max(3, 150*16/len(rows.df)), max_steps=steps, per_device_train_batch_size=16, per_device_eval_batch_size=32,
                                 learning_rate=lr, warmup_steps=.1, seed=rows.plan['seed'], use_cpu=True, bf16=os.environ.get('FASTFORMERS_PRECISION')!='fp32' and bf16_faster(),
                                 report_to='none', save_strategy='no', logging_strategy='no', disable_tqdm=True, dataloader_pin_memory=False)
        t = Trainer(model, args, train_dataset=data(rows.texts, rows.labels), data_collator=DataCollatorWithPadding(tok))
        start = time.process_time()
        t.train()
        return t, time.process_time()-start
    with tempfile.TemporaryDirectory() as tmp:
        t,_ = trained(tmp, round(10*seconds/trained(tmp, 10)[1]) if seconds else -1)
    return Peer(lambda texts: t.predict(data(texts)).predictions)

def measured(fit, rows, at):
    "Fit, and score the rows `at`"
    start,cpu = time.time(),time.process_time()
    with progress.quiet(): predictor = fit(rows)
    took = dict(seconds=round(time.time()-start), cpu=round(time.process_time()-cpu))
    return took | scored(predictor, rows, at)

def scored(predictor, rows, at):
    "Score the rows `at`, and tell with what"
    task,texts = rows.task,read_column(at, rows.text_col)
    if task.one_class:
        start = time.process_time()
        own = getattr(predictor, 'task', task).labels # a class without a row has no column
        hits = np.array(own, dtype=object)[predictor.scores(texts).argmax(1).numpy()]==at.label.to_numpy()
        answers = 1000*(time.process_time()-start)/len(texts) # seconds of a core for a thousand
        res = dict(accuracy=round(float(hits.mean()), 5), hits=np.packbits(hits).tobytes().hex(), answers=round(answers, 2))
    elif task.classes:
        both = [({*o['label']}, {*task.names(y)}) for o,y in zip(predictor(texts), read_labels(at, 'label', task))]
        res = dict(score=round(float(np.mean([2*len(a&b)/max(len(a)+len(b), 1) for a,b in both])), 5))
    else: res = dict(score=round(float(np.corrcoef(np.ravel(predictor.scores(texts)), at.label)[0,1]), 5))
    if hasattr(predictor, 'printed'): res['printed'] = predictor.printed
    return res | dict(commit=commit, precision=precision(), processor=processor(), versions=versions())

def cases(args):
    "List the key of each set, size and draw"
    for seed in args.seeds:
        for name in args.sets:
            for n in args.sizes or sets[name][0]:
                yield dict(set=name, n=n, seed=seed, test=args.final) | (dict(commit=commit) if args.anew else {})

def labelled(name, n, seed, args):
    "Draw the training rows, and return them with the rows that are scored"
    train,dev,test = sets[name][1]()
    if not pd.api.types.is_float_dtype(train.label): train,dev,test = (o.assign(label=o.label.astype(str)) for o in (train,dev,test))
    pair = 'text' not in train
    rows = Rows(train, ['text_a','text_b'] if pair else 'text')
    rows.task.fit(rows.labels)
    rows.unlabelled = [] if pair else train.text.sample(min(15000, len(train)), random_state=0).tolist()
    rows.work = Path(args.work)/f'{name}-{Path(args.arch).name}'
    return rows.like(draw(train, n, seed)), test if args.final else dev

def planned_for(name, rows, seed, args):
    "The rows for the entry `name`, with its plan"
    e = entries.get(name) or Entry(name)
    return entry_rows(replace(e, recipe=e.recipe | dict(model=dict(arch=args.arch), lm=dict(epochs=args.epochs))), rows, seed)

def run(args, table):
    best = {}
    for o in table.all:
        if o.get('part')=='rates' and o['arch']==Path(args.arch).name: best.setdefault(o['set'], {}).setdefault(o['lr'], o['accuracy'])
    for key in cases(args):
        grid = best.get(key['set'])
        for arm in args.arms:
            if arm.startswith('Trainer') and grid is None: continue
            def make():
                rows,at = labelled(key['set'], key['n'], key['seed'], args)
                rows = planned_for(arm, rows, key['seed'], args)
                lr = max(grid, key=grid.get) if grid else None
                if arm in ('Trainer','Trainer, three times the steps'): return measured(lambda o: trainer(o, lr, times=1 if arm=='Trainer' else 3), rows, at)
                if arm=='Trainer, equal seconds': # those of `all layers`, trained before it
                    ours = measured(entries['all layers'].fit, planned_for('all layers', rows, key['seed'], args), at)
                    return dict(ours=ours['accuracy'], ours_cpu=ours['cpu']) | measured(lambda o: trainer(o, lr, ours['cpu']), rows, at)
                e = entries[arm]
                if e.prepare:
                    with progress.quiet(): e.prepare(rows)
                return measured(e.fit, rows, at)
            table.get(make, 'commit', part='run', arch=Path(args.arch).name, arm=arm, **key)

def rate(args, table):
    "Train the Trainer at each rate on draw 0 of the first size"
    for name in args.sets:
        for lr in args.rates:
            def make():
                rows,at = labelled(name, sets[name][0][-1], 0, args)
                return measured(lambda o: trainer(o, lr), planned_for('Trainer', rows, 0, args), at[:400])
            table.get(make, 'accuracy', part='rates', arch=Path(args.arch).name, arm='Trainer', lr=lr, set=name)

def choose(args, table):
    "Let `leaderboard` choose by the training rows alone, and score what it hands out"
    from fastformers.compare.leaderboard import leaderboard
    for key in cases(args):
        def make():
            rows,at = labelled(key['set'], key['n'], key['seed'], args)
            start = time.time()
            ours = [o for o in args.arms if o in entries and o!='SetFit']
            board = leaderboard(rows.df, rows.unlabelled, text_col=rows.text_col, archs=args.arch, minutes=args.minutes, entries=ours)
            took = (time.time()-start)/60
            shown = {k:round(float(v), 4) for k,v in board.table.score.dropna().items()}
            return dict(winner=board.winner, scores=shown, took=round(took, 2), **scored(board.best, rows, at))
        table.get(make, 'accuracy', part='choose', arch=Path(args.arch).name, arm='leaderboard', within=args.minutes, **key)

def near(args, table):
    "Ask whether near texts have one label, and how many labels of 5,000 other training rows are right before and after spreading"
    from fastformers.inference.baseline import TextBaseline
    from fastformers.inference.predictor import Ensemble
    from fastformers.learner.save import as_predictor
    from fastformers.ulmfit.read import task_dls, task_learner
    class Kappa(logging.Handler):
        def emit(self, o): self.said = o.getMessage().split()[-1]
    for key in cases(args):
        def make():
            rows,_ = labelled(key['set'], key['n'], key['seed'], args)
            rest = sets[key['set']][1]()[0].drop_duplicates('text')
            rest = rest[~rest.text.isin(rows.df.text)].sample(frac=1, random_state=0)
            texts,true,c = rest.text[:5000].tolist(),rest.label[:5000].astype(str).to_numpy(),TaskConfig()
            learn = task_learner(task_dls(rows.like(ways._frame(rows)).hold_out(), args.arch, c), args.arch, c)
            log,handler = logging.getLogger('fastformers.learner.spread'),Kappa()
            log.addHandler(handler)
            log.setLevel(logging.INFO)
            agree = bool(learn.spread_labels(texts[:1000]))
            both = Ensemble([as_predictor(learn), TextBaseline.fit(rows.texts, rows.labels, rows.task, characters=True, unlabelled=rest.text.tolist())])
            def right(labels): return round(float(np.mean(np.array(labels)==true)), 4)
            before = right([rows.task.labels[i] for i in both.scores(texts).argmax(1)])
            after = right(learn.spread_labels(texts, [o.scores(texts) for o in both.members]))
            with progress.quiet(): full = entries['all layers'].fit(planned_for('all layers', rows, key['seed'], args))
            return dict(kappa=float(handler.said), agree=agree, before=before, after=after, all_layers=right([o['label'] for o in full(texts)]), commit=commit)
        table.get(make, 'after', part='near', arch=Path(args.arch).name, arm='labels of near texts', **key)

def unpack(o): return np.unpackbits(np.frombuffer(bytes.fromhex(o), np.uint8))

def gain(d, a, b):
    "Difference of two arms on the draws that both have, with its 95 % interval"
    from fastformers.stats import paired_bootstrap
    both = [*map(dict, (d[d.arm==o].set_index('seed').hits.dropna().map(unpack) for o in (a,b)))]
    if not (seeds := sorted(both[0].keys() & both[1].keys())): return ''
    x,low,high = paired_bootstrap(*(np.stack([o[s] for s in seeds]).astype(float) for o in both))
    return f'{100*x:+.1f} ({100*low:+.1f} to {100*high:+.1f})'

def table(args, rows):
    d = pd.DataFrame(rows.all)
    d = d[(d.get('test')==True) & d.part.isin(('run','choose')) & (d.arch==args.arch)]
    order = ['TF-IDF','word vectors','frozen probe','all layers','as typed','together','windows=8 before','as typed after masked LM','frozen probe after stage 2','stage 2 + all layers','label spreading','label spreading after masked LM','contrastive, probe','contrastive','mean','SetFit','Trainer','leaderboard']
    if 'score' in d: d['accuracy'] = d.accuracy.fillna(d.score)
    by = d.groupby(['set','n','arm'])
    for of in (by.accuracy.mean().mul(100).round(1), by.size(), by.cpu.mean().round()):
        print(of.unstack().reindex(columns=[o for o in order if o in {*d.arm}]).to_string(na_rep=''), end='\n\n')
    for (name,n),o in d.groupby(['set','n']):
        for a,b in (('as typed','together'), ('all layers','TF-IDF'), ('all layers','frozen probe'), ('all layers','SetFit'), ('all layers','Trainer'), ('contrastive, probe','all layers'), ('leaderboard','all layers')):
            if {a,b} <= {*o.arm} and (said := gain(o, a, b)): print(f'{name} {n}: {a} against {b} {said}')

def picture(args, rows):
    "Accuracy by number of labels: a tuned linear model, the frozen probe and ours, with the range of the draws, and how many labels the linear model needs for the same"
    import matplotlib.pyplot as plt
    d = pd.DataFrame(rows.all)
    d = d[(d.get('test')==True) & (d.part=='run') & (d.arch==args.arch) & (d.seed<=3)]
    titles = {'trec':'TREC-6: what does a question ask for?', 'clinc150':'CLINC150: ten domains of utterances'}
    fig,axs = plt.subplots(1, 2, figsize=(10,3.6), sharey=True, layout='constrained')
    for ax,(name,title) in zip(axs, titles.items()):
        by = {arm:d[(d.set==name) & (d.arm==arm)].pivot_table(index='n', columns='seed', values='accuracy') for arm in ('linear, tuned','frozen probe','as typed')}
        for (arm,o),color,label in zip(by.items(), ('#64748b','#a16207','#15803d'), ('linear model, tuned','frozen probe','ours, as typed')):
            ax.fill_between(o.index, o.min(1), o.max(1), color=color, alpha=.2, lw=0)
            ax.plot(o.index, o.mean(1), 'o-', color=color, ms=4, label=label)
        base,n = by['linear, tuned'].mean(1).cummax(),100 if name=='trec' else 300
        def needed(y): return float(np.exp(np.interp(y, base, np.log(base.index))))
        ours = by['as typed'].loc[n]
        y,to,each = ours.mean(),needed(ours.mean()),[*map(needed, ours)]
        more = base.iloc[-1]<ours.max() # even the most labels are too few
        ax.annotate('', (to,y), (n,y), arrowprops=dict(arrowstyle='<->', color='black', shrinkA=4))
        says = f'{min(each)/n:.2g} to {max(each)/n:.2g}'+' or more'*bool(more)
        ax.text(np.sqrt(n*to)*1.15, y-.05, f'{says} times fewer labels', ha='left' if to/n<9 else 'center', fontsize=9, bbox=dict(color='white', alpha=.8, pad=1))
        ax.set(xscale='log', xlabel='labelled texts', title=title, ylim=(.4,1))
        ax.set_xticks([50,100,300,1000,5000], [50,100,300,'1,000','5,000'])
        ax.minorticks_off()
        ax.grid(alpha=.3)
    axs[0].set_ylabel('accuracy on test texts')
    axs[1].legend(loc='lower right', fontsize=9)
    for to in (results, results.parent.parent/'nbs/images'): fig.savefig(to/'few_labels.png', dpi=80)

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    p.add_argument('part', choices=['rates','run','choose','near','table','picture'])
    p.add_argument('--arch', default='minilm')
    p.add_argument('--arms', default='TF-IDF;frozen probe;all layers;Trainer;SetFit', type=lambda o: o.split(';'), help='with ; between them')
    p.add_argument('--sets', default=','.join(sets), type=lambda o: o.split(','))
    p.add_argument('--sizes', type=lambda o: [*map(int, o.split(','))])
    p.add_argument('--seeds', default='1,2,3', type=lambda o: [*map(int, o.split(','))])
    p.add_argument('--epochs', type=float, help='of stage 2')
    p.add_argument('--rates', default='5e-5,1e-4,2e-4,4e-4', type=lambda o: [*map(float, o.split(','))], help='of the Trainer')
    p.add_argument('--minutes', type=float, default=5., help='of `leaderboard`')
    p.add_argument('--work', default='runs/compare')
    p.add_argument('--final', action='store_true', help='read the test rows, once')
    p.add_argument('--anew', action='store_true', help='make rows of other commits again; these stay, and tables take the later one')
    args = p.parse_args()
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    quiet()
    {'rates':rate, 'run':run, 'choose':choose, 'near':near, 'table':table, 'picture':picture}[args.part](args, Table(results/'compare'))
