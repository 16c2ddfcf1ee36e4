"""Methods of `papers` that change how a classifier is trained, beside plain fine-tuning on the same rows and seeds

    FASTFORMERS_DATA=... python benchmarks/papers.py run     # about half an hour on one thread; finished rows are kept
    FASTFORMERS_DATA=... python benchmarks/papers.py run --sets elmo --work DIR
    python benchmarks/papers.py table

`trec`: 100 questions, all-MiniLM-L6-v2, Mixout with and without dropout. `rte`: entailment with 500 pairs, alone, after SICK (STILTs) and together with it (MT-DNN).
`ewc`: 500 questions from the shipped LM of Wikipedia, and what is left of its LM loss on 300 paragraphs. `uda`: 100 questions from the same LM, with 4,852 others as texts without labels; it fills hidden tokens too.
`elmo`: 500 questions after 200,000 tokens of Wikipedia, which each direction reads (the row of both is without the seconds of the forward one); `plain` is a masked LM of as many tokens. `--work` keeps the language models.
`multifit`: topics of Spanish articles; `plain` is the teacher, a linear model of 3,000 English news, whose answers train a classifier from an LM of 200,000 Spanish tokens.
`gpt`: 500 questions, 500 pairs of SICK from a causal Llama of 200,000 tokens of Wikipedia; `plain` begins with a probe of the mean of all tokens, `extract token` with one of the token that GPT adds, `GPT` with a random layer and adds the LM loss.
Development rows score; they also decide, in each arm, whether training is kept or the probe."""
from compare import Table, draw, held, results
from common import *

def clock(): return np.array([time.time(), time.process_time()])

def row(right, start):
    took = clock()-start
    return dict(accuracy=round(float(np.mean(right)), 5), hits=np.packbits(right).tobytes().hex(), n_scored=len(right),
                seconds=round(took[0]), cpu=round(took[1]), commit=commit, precision=precision(), processor=processor())

def plain(df, at, arch='minilm', cols='text', **kw):
    "Train a classifier as typed, with the rows `at` for validation"
    from fastformers.ulmfit.stage import fine_tune_classifier
    both = pd.concat([df.assign(is_valid=False), at.assign(is_valid=True)], ignore_index=True)
    return fine_tune_classifier(both, arch, text_col=cols, **kw)

def trec(args, table):
    "Mixout with 100 questions"
    from fastformers.papers.mixout import Mixout
    train,dev,_ = held('trec/train.csv', 'trec/test.csv', 500)
    arms = {'plain':{}, 'no dropout':dict(drop_mult=0.), 'Mixout 0.7':dict(drop_mult=0., cbs=Mixout(.7)), 'Mixout 0.9':dict(drop_mult=0., cbs=Mixout(.9))}
    for seed in args.seeds:
        df = draw(train, 100, seed)
        for arm,kw in arms.items():
            def make():
                start = clock()
                return row(plain(df, dev, seed=seed, **kw).score>0, start)
            table.get(make, 'accuracy', set='trec', arm=arm, seed=seed)

def rte(args, table):
    "Entailment with SICK before it or beside it"
    import tempfile
    from fastformers.data.block import classifier_dls
    from fastformers.papers.mt_dnn import AuxiliaryTasks
    from fastformers.ulmfit.stage import fine_tune_classifier
    train,sick = (read(o)[['text_a','text_b','label']] for o in data_files('rte/train.csv', 'sick/train.csv'))
    cols = 'text_a','text_b'
    train = train.drop_duplicates('text_a').sample(frac=1, random_state=0)
    train,dev = train[400:],train[:400]
    folder = tempfile.TemporaryDirectory()
    for seed in args.seeds:
        df = train.sample(500, random_state=seed)
        for arm in ('plain','STILTs','MT-DNN'):
            def make():
                start,arch,cbs = time.time(),'minilm',None
                if arm=='STILTs':
                    arch = Path(folder.name)/f'sick{seed}'
                    fine_tune_classifier(sick, 'minilm', arch, text_col=cols, seed=seed, epochs=2.)
                if arm=='MT-DNN': cbs = AuxiliaryTasks({'sick':classifier_dls(sick, 'minilm', cols, bs=16, device='cpu')})
                return row(plain(df, dev, arch, cols, seed=seed, cbs=cbs).score>0, start)
            table.get(make, 'accuracy', set='rte', arm=arm, seed=seed)

def ewc(args, table):
    "What a classifier of questions leaves of a language model of Wikipedia"
    from fastformers.data.block import lm_dls
    from fastformers.interpret.forgetting import forgetting
    from fastformers.learner.core import lm_learner
    from fastformers.papers.ewc import EWC, fisher_diagonal
    from fastformers.text.readers import read_texts
    train,dev,_ = held('trec/train.csv', 'trec/test.csv', 500)
    general,other = (read_texts(o).text for o in data_files('wiki_en/train.txt.gz', 'wiki_en/valid.txt.gz'))
    paragraphs = [o for t in other for o in t.split('\n') if len(o)>300]
    paragraphs = pd.Series(paragraphs).sample(300, random_state=0).tolist()
    lm = lm_learner(lm_dls(general.sample(100, random_state=0).tolist(), 'wiki-mini', bs=16, device='cpu'), 'wiki-mini')
    fisher = fisher_diagonal(lm, lm.dls.train, n=1000)
    for seed in args.seeds:
        df = draw(train, 500, seed)
        arms = {'plain':{}, 'lower rate':dict(lr=1e-4), **{f'EWC {o:g}':dict(cbs=EWC(fisher, o)) for o in (100, 1000)}}
        for arm,kw in arms.items():
            def make():
                start = clock()
                stage = plain(df, dev, 'wiki-mini', seed=seed, **kw)
                left = forgetting(stage.learner, paragraphs).loc['now',['change','from','to']]
                return row(stage.score>0, start) | dict(forgotten=left.astype(float).round(4).tolist())
            table.get(make, 'accuracy', set='ewc', arm=arm, seed=seed)

def uda(args, table):
    "100 questions, and all others without labels"
    from fastformers.papers.uda import Consistency
    train,dev,_ = held('trec/train.csv', 'trec/test.csv', 500)
    for seed in args.seeds:
        df = draw(train, 100, seed)
        more = train[~train.text.isin(df.text)].text.tolist()
        arms = {'plain':None, 'UDA, masks':{}, 'UDA, words':dict(fill='wiki-mini')}
        for arm,kw in arms.items():
            def make():
                start = clock()
                return row(plain(df, dev, 'wiki-mini', seed=seed, cbs=None if kw is None else Consistency(more, seed=seed, **kw)).score>0, start)
            table.get(make, 'accuracy', set='uda', arm=arm, seed=seed)

def elmo(args, table):
    "Questions after a masked language model, a forward one of LSTMs, and two of them joined"
    from transformers import AutoConfig
    from fastformers.papers.elmo import join_directions
    from fastformers.text.encode import HFTokenizer
    from fastformers.text.readers import read_texts
    from fastformers.text.tokenizer import load_tokenizer
    from fastformers.text.train_tokenizer import train_tokenizer
    from fastformers.ulmfit.stage import pretrain_lm
    train,dev,_ = held('trec/train.csv', 'trec/test.csv', 500)
    texts,work = read_texts(*data_files('wiki_en/train.txt.gz')).text.sample(200, random_state=0).tolist(),Path(args.work)
    tok = load_tokenizer(work/'tok') if (work/'tok').exists() else train_tokenizer(texts, 'wordpiece', 4000, path=work/'tok')
    read = np.cumsum([len(o) for o in HFTokenizer(tok).encode_batch(texts)])
    texts = texts[:np.searchsorted(read, args.tokens)+1]
    lstm = AutoConfig.for_model('awd_lstm', vocab_size=len(tok), hidden_size=128, inner_size=128, num_hidden_layers=2)
    for seed in args.seeds:
        df,at = draw(train, 500, seed),{o:work/f'{o}{seed}' for o in ('mlm','forwards','backwards','both')}
        def lm(way):
            own = dict(objective='mlm', size=2) if way=='mlm' else dict(objective='clm', config=lstm, size=2, backwards=way=='backwards')
            if not at[way].exists(): pretrain_lm(texts, at[way], tok, seed=seed, **own)
        arms = {'plain':('mlm', -1), 'forward LSTM':('forwards', 'mix'), 'ELMo':('both', 'mix')}
        for arm,(way,states) in arms.items():
            def make():
                start = clock()
                for o in (way,) if way!='both' else ('forwards','backwards'): lm(o)
                if way=='both' and not at[way].exists(): join_directions(at['forwards'], at['backwards'], at[way])
                return row(plain(df, dev, at[way], seed=seed, hidden_states=states).score>0, start)
            table.get(make, 'accuracy', set='elmo', arm=arm, seed=seed)

def gpt(args, table):
    "Questions and pairs with the extract token of GPT, with and without the LM loss"
    from fastformers.data.block import classifier_dls
    from fastformers.learner.choose import fine_tuning_lr
    from fastformers.papers.gpt import gpt_learner, gpt_tokens
    from fastformers.text.readers import read_texts
    from fastformers.text.tokenizer import load_tokenizer
    from fastformers.learner.evaluate import evaluate
    from fastformers.ulmfit.stage import pretrain_lm
    questions,other,_ = held('trec/train.csv', 'trec/test.csv', 500)
    pairs,cols = read(*data_files('sick/train.csv'))[['text_a','text_b','label']].sample(frac=1, random_state=0),['text_a','text_b']
    data = {'gpt':('text', questions, other), 'gpt pairs':(cols, pairs[500:], pairs[:500])}
    texts,work = read_texts(*data_files('wiki_en/train.txt.gz')).text.sample(frac=1, random_state=0),Path(args.work)
    texts = texts[texts.str.len().cumsum()<4*args.tokens].tolist()
    for seed in args.seeds:
        lm = work/f'causal{seed}'
        if not lm.exists(): pretrain_lm(texts, lm, objective='clm', family='llama', size=2, vocab_sz=4000, seed=seed)
        for name,(col,train,dev) in data.items():
            df = draw(train, 500, seed)
            def make():
                start = clock()
                return row(plain(df, dev, lm, col, seed=seed).score>0, start)
            table.get(make, 'accuracy', set=name, arm='plain', seed=seed)
            tok = gpt_tokens(load_tokenizer(lm))
            def make():
                start = clock()
                return row(plain(df, dev, lm, col, tok=tok, pool='last', seed=seed).score>0, start)
            table.get(make, 'accuracy', set=name, arm='extract token', seed=seed)
            def make():
                start,both = clock(),pd.concat([df.assign(is_valid=False), dev.assign(is_valid=True)], ignore_index=True)
                dls = classifier_dls(both, tok, col, bs=16, seed=seed, device='cpu')
                torch.manual_seed(seed)
                learn = gpt_learner(dls, lm)
                learn.fit_schedule('full_tune', fine_tuning_lr(learn.model), max(3, 150/len(dls.train)), discr=1.11, anneal='linear_warmup')
                return row(evaluate(learn)[1]>0, start)
            table.get(make, 'accuracy', set=name, arm='GPT', seed=seed)

def multifit(args, table):
    "Topics of Spanish articles from the labels of English news"
    from fastformers.inference.baseline import TextBaseline
    from fastformers.papers.multifit import zero_shot
    from fastformers.text.readers import read_texts
    from fastformers.ulmfit.stage import pretrain_lm
    news,train,dev = map(read, data_files('agnews/train_10k.csv.gz', 'fakenews_es/train.csv.gz', 'fakenews_es/dev.csv.gz'))
    topics = dict(Politics='World', Sport='Sports', Economy='Business', Science='Sci/Tech')
    train,dev = (o.assign(label=o.topic.map(topics)).dropna(subset='label') for o in (train, dev))
    news,start = news.sample(3000, random_state=0),clock()
    teacher = TextBaseline.fit(news.text, news.label, characters=True, max_terms=50_000)
    right = dev.label==[o['label'] for o in teacher(dev.text.tolist())]
    articles = read_texts(*data_files('wiki_es/train.txt.gz')).text.sample(frac=1, random_state=0)
    articles = articles[articles.str.len().cumsum()<4*args.tokens].tolist()
    for seed in args.seeds:
        table.get(lambda: row(right.to_numpy(), start), 'accuracy', set='multifit', arm='plain', seed=seed)
        def make():
            start,lm = clock(),Path(args.work)/f'spanish{seed}'
            if not lm.exists(): pretrain_lm(articles, lm, size=2, seed=seed)
            return row(zero_shot(teacher, train.text, lm, test=dev, seed=seed).test_score>0, start)
        table.get(make, 'accuracy', set='multifit', arm='MultiFiT', seed=seed)

def show(rows):
    "Print the mean of each arm, and its difference to plain fine-tuning with a 95 % interval"
    from fastformers.stats import paired_bootstrap
    d = pd.DataFrame(rows.all)
    d['right'] = [np.unpackbits(np.frombuffer(bytes.fromhex(h), np.uint8))[:n].astype(float) for h,n in zip(d.hits, d.n_scored)]
    for (name,arm),o in d.groupby(['set','arm'], sort=False):
        base = d[(d.set==name) & (d.arm=='plain') & d.seed.isin(o.seed)]
        gain,low,high = (100*v for v in paired_bootstrap(np.stack(o.right), np.stack(base.right)))
        print(f'{name:9} {arm:15} {100*o.accuracy.mean():5.1f}  {gain:+.1f} ({low:+.1f} to {high:+.1f})  {len(o)} seeds  {o.seconds.mean():.0f} s')
    for o in rows.all:
        if 'forgotten' in o: print('{set:9} {arm:15} seed {seed}: LM loss on Wikipedia {0:+.3f} ({1:+.3f} to {2:+.3f})'.format(*o['forgotten'], **o))

if __name__=='__main__':
    import tempfile, torch
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    p.add_argument('part', choices=['run','table'])
    p.add_argument('--sets', default='trec,rte,ewc,uda,elmo,gpt,multifit', type=lambda o: o.split(','))
    p.add_argument('--seeds', default='1,2', type=lambda o: [*map(int, o.split(','))])
    p.add_argument('--tokens', default=200_000, type=int, help='that each language model of `elmo` reads')
    p.add_argument('--work', default=None, help='directory for language models; default: a temporary one')
    p.add_argument('--out', default=results/'papers', help='directory of the rows')
    args = p.parse_args()
    args.work = args.work or (folder := tempfile.TemporaryDirectory()).name
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(1)
    quiet()
    table = Table(args.out)
    for name in args.sets if args.part=='run' else []: globals()[name](args, table)
    show(table)
