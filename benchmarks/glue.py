"""Eight small sets (Q3): our fine-tuning beside Hugging Face's `Trainer`, the same body, rows, epochs, batch size and precision

    FASTFORMERS_DATA=... python benchmarks/glue.py --work DIR [--sets cola,rte]    # a rate for each contender and set, of three, on validation rows drawn from train (one seed); then the seeds
    FASTFORMERS_DATA=... python benchmarks/glue.py --work DIR --final              # and the test rows

Some of the sets go into a file of their own, results/glue_SETS.json.

1,200 training rows and 500 validation rows of each set, up to 1,000 test rows, 128 tokens, 3 epochs, batches of 16, MiniLM; `--full` takes all rows. Ours is `fine_tune_classifier` as it comes (concat pooling, one-cycle, layer decay);
the `Trainer` has its own defaults (first token, linear decay) with a tenth of warm-up. Scores: accuracy; CoLA Matthews' r; STS-B Pearson's r; GoEmotions label ranking average precision. Higher is better, in %.
"""
import tempfile
from contextlib import contextmanager
import numpy as np, pandas as pd
from classify import Rows, last_only
from common import *

lrs,epochs,bs,max_len = (5e-5,1e-4,2e-4),3,16,128
sets = { # training file, test file, score
    'agnews':('agnews/train_10k.csv.gz', 'agnews/test.csv.gz', 'accuracy'),
    'sst2':('sst2/train.csv.gz', 'sst2/dev.csv', 'accuracy'), # GLUE's own test rows have no labels
    'cola':('cola/train.csv', 'cola/dev_in_domain.csv', "Matthews' r"),
    'mrpc':('mrpc/train.csv', 'mrpc/test.csv', 'accuracy'),
    'rte':('rte/train.csv', 'rte/test.csv', 'accuracy'),
    'stsb':('stsb/train.csv', 'stsb/test.csv', "Pearson's r"),
    'sick':('sick/train.csv', 'sick/test.csv', 'accuracy'),
    'goemotions':('goemotions/train.csv.gz', 'goemotions/test.csv', 'LRAP'),
}
origin.update({f:f'{f.split("/")[0]}, as CSV; see the citations in this folder' for a,b,_ in sets.values() for f in (a,b)})

def table(path):
    "The rows of the file `path`: one text or two and a label, which is a number only where the file has no classes"
    df = read(path)
    if 'label' not in df: df = df.rename(columns={'labels':'label', 'score':'label'})
    if not pd.api.types.is_float_dtype(df.label): df = df.assign(label=df.label.astype(str))
    return df.filter(['text','text_a','text_b','label'])

def load(name, full):
    "(training rows with validation rows among them, test rows)"
    df,test = map(table, data_files(*sets[name][:2]))
    if not full: df,test = df.sample(min(1700, len(df)), random_state=0),test.sample(min(1000, len(test)), random_state=0)
    df = df.reset_index(drop=True)
    if name=='goemotions': # labels that are there to be learnt
        known = set(';'.join(df.label).split(';'))
        test = test[[set(o.split(';'))<=known for o in test.label]]
    return df.assign(is_valid=df.index>=len(df)-min(500, len(df)//3)), test.reset_index(drop=True)

def columns(df): return 'text' if 'text' in df else ['text_a','text_b']

def score(what, pred, y):
    "`pred` `(rows, outputs)` and `y`, class numbers, numbers or 0 and 1 `(rows, labels)`, as the score `what` in %"
    from sklearn.metrics import label_ranking_average_precision_score, matthews_corrcoef
    if what=='accuracy': return 100*(pred.argmax(1)==y).mean()
    if what=="Matthews' r": return 100*matthews_corrcoef(y, pred.argmax(1))
    if what=="Pearson's r": return 100*np.corrcoef(pred.reshape(-1), y.reshape(-1))[0,1]
    return 100*label_ranking_average_precision_score(y, pred)

def ours(what, df, test, seed, lr):
    from fastformers.ulmfit.stage import fine_tune_classifier
    learn = fine_tune_classifier(df, 'minilm', text_col=columns(df), valid_col='is_valid', max_len=max_len, bs=bs, epochs=epochs, lr=lr, seed=seed, cbs=last_only()).learner
    def of(dl):
        with learn.no_bar(): pred,y = learn.get_preds(dl=dl)
        return score(what, pred.float().numpy(), y.numpy())
    return {'validation':of(learn.dls.valid), **({} if test is None else {'test':of(learn.dls.test_dl(test, with_labels=True))})}

def trainer(what, df, test, seed, lr, epochs=epochs, max_len=max_len):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, set_seed
    from fastformers.hub import resolve_arch
    from fastformers.models.fast_cpu import bf16_faster
    texts,path = columns(df),str(resolve_arch('minilm'))
    tok,names = AutoTokenizer.from_pretrained(path),sorted({l for o in df.label for l in str(o).split(';')})
    kind = 'regression' if what=="Pearson's r" else 'multi_label_classification' if what=='LRAP' else 'single_label_classification'
    def target(o):
        if kind=='regression': return float(o)
        return names.index(str(o)) if kind.startswith('single') else [float(n in o.split(';')) for n in names]
    def rows(part):
        cols = [part[c].tolist() for c in ([texts] if isinstance(texts, str) else texts)]
        enc = tok(*cols, truncation=True, max_length=max_len)
        return [{**{k:enc[k][i] for k in enc}, 'labels':target(o)} for i,o in enumerate(part.label)]
    set_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1 if kind=='regression' else len(names), problem_type=kind)
    bf16 = not torch.cuda.is_available() and bf16_faster()
    with hf_trained(model, rows(df[~df.is_valid]), DataCollatorWithPadding(tok), seed, lr, epochs, bs, bf16=bf16) as t:
        def of(part):
            o = t.predict(rows(part))
            return score(what, o.predictions, o.label_ids)
        return {'validation':of(df[df.is_valid]), **({} if test is None else {'test':of(test)})}

def interval(a, b):
    "Mean difference of paired scores, and its 95 % interval by Student's t"
    from scipy.stats import t
    d = np.array(a)-np.array(b)
    half = t.ppf(.975, len(d)-1)*d.std(ddof=1)/len(d)**.5
    return dict(difference=round(d.mean(), 2), low=round(d.mean()-half, 2), high=round(d.mean()+half, 2))

@contextmanager
def hf_trained(model, train, collate, seed, lr, epochs, bs, eval_bs=64, **more):
    "Hugging Face's `Trainer` after a training of `model`: linear decay with a tenth of warm-up"
    import torch
    from transformers import Trainer, TrainingArguments
    with tempfile.TemporaryDirectory() as tmp:
        args = TrainingArguments(tmp, num_train_epochs=epochs, per_device_train_batch_size=bs, per_device_eval_batch_size=eval_bs, learning_rate=lr, warmup_steps=.1, seed=seed,
                                 use_cpu=not torch.cuda.is_available(), report_to='none', save_strategy='no', logging_strategy='no', disable_tqdm=True, dataloader_pin_memory=False, **more)
        t = Trainer(model, args, train_dataset=train, data_collator=collate)
        t.train()
        yield t

def against_trainer(name, doc, full, load, contenders, lrs, measures, facts=None, **settings):
    "A rate for each of the `contenders`, `ours` and `trainer`, by the last of the `measures` of validation rows (one seed); then the seeds"
    p = parser(doc.split('\n')[0])
    p.add_argument('--work', type=Path, default=Path('runs')/name, help='directory of what is under way')
    p.add_argument('--few', type=int, default=0, help='only about so many rows of each part, to try the script; no result is written')
    p.add_argument('--full', action='store_true', help=full)
    args = p.parse_args()
    seeds,rows = [int(o) for o in args.seeds.split(',')],Rows(args.work, few=args.few, full=args.full, **settings)
    import torch
    torch.set_num_threads(1)
    quiet()
    logging.getLogger('fastformers').setLevel(logging.ERROR)
    df,test = load(args.final, args.few, args.full)
    parts = ('validation','test')[:1+args.final]
    def row(who, lr, seed, test=None, need='validation'): return rows.get(lambda: contenders[who](df, test, seed, lr), need, who=who, lr=lr, seed=seed)
    *_,measure = measures.values()
    best = {who:max(lrs, key=lambda lr: measure(row(who, lr, seeds[0])['validation'])) for who in contenders}
    got,figures = {who:[row(who, best[who], s, test, parts[-1]) for s in seeds] for who in contenders},{}
    for part in parts:
        o = figures[part] = {}
        for k,f in measures.items():
            each = {who:[f(r[part]) for r in v] for who,v in got.items()}
            o[k],gap = {who:stat(v) for who,v in each.items()},{'ours - trainer':interval(each['ours'], each['trainer'])}
            (o[k] if len(measures)>1 else o).update(gap)
        print(part, o, flush=True)
    if not args.few: save(name, args, dict(lrs=lrs, full=args.full, seeds=seeds, rates=best, **settings, **(facts or {})), figures, args.final)

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--work', type=Path, default=Path('runs/glue'), help='directory of what is under way')
    p.add_argument('--sets', default=','.join(sets), help='comma-separated')
    p.add_argument('--full', action='store_true', help='all rows, for a GPU')
    args = p.parse_args()
    seeds,rows,res = [int(o) for o in args.seeds.split(',')],Rows(args.work, epochs=epochs, bs=bs, max_len=max_len, full=args.full),{}
    quiet()
    logging.getLogger('fastformers').setLevel(logging.ERROR)
    for name in (chosen := args.sets.split(',')):
        df,test = load(name, args.full)
        def row(who, lr, seed, final=False):
            return rows.get(lambda: dict(ours=ours, trainer=trainer)[who](sets[name][2], df, test if final else None, seed, lr), 'test' if final else 'validation', set=name, who=who, lr=lr, seed=seed)
        best = {who:max(lrs, key=lambda lr: row(who, lr, seeds[0])['validation']) for who in ('ours','trainer')}
        got = {who:[row(who, best[who], s, args.final) for s in seeds] for who in best}
        res[name] = {part:{who:stat([o[part] for o in v]) for who,v in got.items()} | interval(*([o[part] for o in got[who]] for who in ('ours','trainer')))
                     for part in ('validation','test')[:1+args.final]} | {'rates':best, 'score':sets[name][2], 'rows':[int((~df.is_valid).sum()), int(df.is_valid.sum()), len(test)]}
        for part in ('validation','test')[:1+args.final]:
            o = res[name][part]
            print(f"{name:11} {part:10} {sets[name][2]:12} ours {o['ours']['mean']:6.2f} ± {o['ours']['sd']}, Trainer {o['trainer']['mean']:6.2f} ± {o['trainer']['sd']}; difference {o['difference']:+.2f} ({o['low']:+.2f} to {o['high']:+.2f})", flush=True)
    figures = {'scores %':{k:{a:b for a,b in o.items() if a!='test'} for k,o in res.items()}, **({'test':{'test scores %':{f'{k}, {who}':o['test'][who] for k,o in res.items() for who in ('ours','trainer')},
                                                                                                          'difference':{k:{a:o['test'][a] for a in ('difference','low','high')} for k,o in res.items()}}} if args.final else {})}
    few = '' if set(chosen)==set(sets) else '_'+'_'.join(chosen)
    save(f'glue{few}', args, dict(lrs=lrs, epochs=epochs, bs=bs, max_len=max_len, full=args.full, seeds=seeds), figures, args.final)

if __name__=='__main__': main()
