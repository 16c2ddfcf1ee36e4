"""What do the stages buy? The same classifier from several starting points, with few labels and with many

    FASTFORMERS_DATA=... python benchmarks/stage2.py imdb --work DIR                          # validation reviews of other films
    FASTFORMERS_DATA=... python benchmarks/stage2.py imdb --work DIR --arms wiki,both --sizes 100 --seeds 42
    FASTFORMERS_DATA=... python benchmarks/stage2.py imdb --work DIR --final                  # and a fixed balanced sample of 2,500 test reviews

The starting points: `random` weights; `wiki`, the general language model (wiki-mini, for Spanish one trained on its Wikipedia by the same recipe); `both`, this model trained further on the target texts; `both-counts`, with embeddings mixed with counts of these texts before; `target`, the same network
trained on the target texts alone, as long as `both` there; `target-long`, for as many tokens as `both` has read in all; `minilm`, a sentence encoder without an LM head; `minilm-both`, trained further; `awd-lstm`, fastai's, from
scratch; beside TF-IDF + logistic regression on whole texts. `--work` keeps language models and their checkpoints, results/stage2_rows finished rows: the same command goes on after it was stopped. Reviews of `unsup` that are also
test or validation texts, and those of validation films, are left out.
"""
from classify import Rows, last_only
from common import *

arms = 'random','wiki','both','target','minilm','minilm-both','awd-lstm'
lm = dict(seq_len=256, bs=8, valid_pct=.01, drop_mult=0.)
sets = {'imdb':dict(sizes=(100,500,2000), epochs={100:15, 500:8, 2000:4, 25000:3}, max_len=512, pool='mean', passes=.6),
        'trec':dict(sizes=(100,500,4800), epochs={100:30, 500:12, 4800:4}, max_len=64, pool='concat', passes=4.),
        'intents':dict(sizes=(100,300), epochs={100:30, 300:15}, max_len=64, pool='concat', passes=4.),
        'spanish':dict(sizes=(100,600), epochs={100:15, 600:8}, max_len=512, pool='mean', passes=4., general='wiki_es')}

def sample(df, n, seed):
    "`n` rows, as many of each class as there are, at most alike"
    o = df.sample(frac=1, random_state=seed)
    return o.assign(k=o.groupby('label').cumcount()).sort_values('k', kind='stable')[:n].drop(columns='k').sample(frac=1, random_state=seed)

def imdb():
    "(training reviews, validation reviews of other films, test reviews, unlabelled texts)"
    train,test,unsup = map(read, data_files('imdb/train.csv.gz', 'imdb/test.csv.gz', 'imdb/unsup.csv.gz'))
    films = pd.Series(sorted(train.movie.unique())).sample(frac=.2, random_state=0)
    valid,train = sample(train[train.movie.isin(films)], 1000, 0),train[~train.movie.isin(films)]
    held = set(test.text) | set(valid.text)
    unsup = unsup[~unsup.text.isin(held) & ~unsup.movie.isin(films)]
    return train, valid, sample(test, 2500, 0), unsup.text.tolist()

def trec():
    train,test = map(read, data_files('trec/train.csv', 'trec/test.csv'))
    train = train[~train.text.isin(test.text)].drop_duplicates('text').sample(frac=1, random_state=0)
    return train[500:], train[:500], test, train.text[500:].tolist()

def intents():
    "Questions to an assistant with ten domains, which are part of the package"
    from fastformers.text.corpora import intents
    df = intents().sample(frac=1, random_state=0)
    train,valid,test = (df[df.split==o] for o in ('train','valid','test'))
    return train, valid[:1000], test, train.text.tolist()

def spanish():
    train,dev,test = map(read, data_files('fakenews_es/train.csv.gz', 'fakenews_es/dev.csv.gz', 'fakenews_es/test.csv.gz'))
    train = train[~train.text.isin(dev.text)] # 4 texts are in both; the test articles are of another period, with other topics
    return train, dev, test, train.text.tolist()

def tokens_read(path):
    "Millions of tokens that a language model has read, with the models it began from"
    from fastformers.hub import resolve_arch
    from fastformers.inference.stage_json import read_stage
    def n(o): return o['sizes']['training tokens']*sum(o['recipe']['schedule']['epochs'])+(n(o['parent']) if isinstance(o['parent'], dict) else 0)
    return n(read_stage(resolve_arch(path)))/1e6

def start_of(work, c, texts, arm):
    "The starting point `arm` of a classifier; a language model is trained if it is not there"
    from fastformers.models.load import load_config
    from fastformers.text.readers import read_texts
    from fastformers.text.tokenizer import load_tokenizer
    from fastformers.ulmfit.recipe import read_recipe
    from fastformers.ulmfit.stage import fine_tune_lm, pretrain_lm
    def made(name, f, *args, **kwargs):
        if not (work/name/'stage.json').exists(): f(*args, path=work/name, resume=work/f'{name}.checkpoints', **kwargs)
        return work/name
    def general():
        if 'general' not in c: return 'wiki-mini'
        recipe = vars(read_recipe(here.parent/'recipes'/'wiki-mini.ini').general)
        return made('wiki', pretrain_lm, read_texts(*data_files(f"{c['general']}/train.txt.gz")), **recipe | {'epochs':1.})
    if arm in ('minilm','awd-lstm'): return arm
    if arm in ('random','wiki'): return general()
    if 'both' in arm: return made(arm, fine_tune_lm, texts, 'minilm' if arm=='minilm-both' else general(), epochs=c['passes'], embeddings='counts' if arm=='both-counts' else 'kept', mask_rate=.15, **lm)
    tok = load_tokenizer(general())
    passes = c['passes']+(1e6*tokens_read(general())/sum(map(len, tok(texts)['input_ids'])) if arm=='target-long' else 0)
    return made(arm, pretrain_lm, texts, tok=tok, config=load_config(general()), mask_rate=.15, lr=2e-3, packing='doc-sentences', epochs=passes, **lm)

def awd_lstm(c, df, seed):
    "fastai's classifier from scratch"
    from fastai.text.all import AWD_LSTM, TextDataLoaders, accuracy, text_classifier_learner
    from fastai.torch_core import set_seed
    set_seed(seed)
    dls = TextDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='is_valid', seq_len=72, bs=16, device='cpu')
    return text_classifier_learner(dls, AWD_LSTM, pretrained=False, metrics=accuracy, max_len=c['max_len'], cbs=last_only())

def transformer(arch, c, df, seed, pretrained):
    from fastai.torch_core import set_seed
    from fastformers.data.block import classifier_dls
    from fastformers.learner.core import classifier_learner
    set_seed(seed)
    dls = classifier_dls(df, arch, bs=16, seed=seed, max_len=c['max_len'], device='cpu')
    return classifier_learner(dls, arch, head_init='random', pretrained=pretrained, pool=c['pool'], cbs=last_only())

def classify(arch, c, df, test, n, seed, arm):
    "Validation error in %, with `test` also its; random weights learn all at once, pretrained ones the head first"
    from fastformers.callback.schedule import full_tune, head_first
    learn = awd_lstm(c, df, seed) if arm=='awd-lstm' else transformer(arch, c, df, seed, arm!='random')
    schedule,lr = full_tune if arm in ('random','awd-lstm') else head_first,2e-3 if arm=='awd-lstm' else 1e-3
    with learn.no_bar(), learn.no_logging(): learn.fit_schedule(schedule, lr, c['epochs'][n])
    def error(dl): return 100*(1-float(learn.validate(dl=dl)[1]))
    return {'validation':error(learn.dls.valid), **({} if test is None else {'test':error(learn.dls.test_dl(test, with_labels=True))})}

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('set', choices=sets)
    p.add_argument('--work', type=Path, default=Path('runs/stage2'), help='directory of language models')
    p.add_argument('--arms', default=','.join(arms))
    p.add_argument('--sizes', help='numbers of labels, instead of those of the set')
    p.set_defaults(seeds='42,43,44,45,46')
    args = p.parse_args()
    import torch
    torch.set_num_threads(1)
    quiet()
    c,work = sets[args.set],args.work/args.set
    train,valid,test,texts = globals()[args.set]()
    sizes,seeds = [int(o) for o in args.sizes.split(',')] if args.sizes else c['sizes'],[int(o) for o in args.seeds.split(',')]
    rows = Rows(results/'stage2_rows'/args.set, lm=lm, settings=c)
    for arm in args.arms.split(','):
        arch = start_of(work, c, texts, arm)
        millions = 0 if arm in ('random','minilm','awd-lstm') else round(tokens_read(arch), 1)
        for n in sizes:
            for seed in seeds:
                few = sample(train, n, seed)
                df = pd.concat([few.assign(is_valid=False), valid.assign(is_valid=True)], ignore_index=True)[['text','label','is_valid']]
                rows.get(lambda: classify(arch, c, df, test if args.final else None, n, seed, arm), 'test' if args.final else 'validation', arm=arm, read=millions, n=n, seed=seed)
    figures = {}
    for part,held in {'validation':valid, **({'test':test} if args.final else {})}.items():
        o = pd.DataFrame([r for r in rows.all if r['n'] in sizes and r['seed'] in seeds and part in r])
        words = pd.DataFrame([{'arm':'TF-IDF', 'n':n, 'read':0, part:tfidf_error(sample(train, n, s), held)} for n in sizes for s in seeds])
        o = pd.concat([o, words], ignore_index=True)
        figures[part] = {f'{n} labels, {arm}'+(f' ({read:g}M tokens)' if read else ''):stat(g[part]) for (n,arm,read),g in o.groupby(['n','arm','read'], sort=False)}
        print(f'\nerror %, {part}', *(f"  {k:26} {v['mean']} ± {v['sd']}" for k,v in figures[part].items()), sep='\n')
    save(f'stage2_{args.set}', args, dict(lm=lm, settings=c, seeds=seeds), {'validation error %':figures['validation'], **({'test':{'test error %':figures['test']}} if args.final else {})}, args.final)

if __name__=='__main__': main()
