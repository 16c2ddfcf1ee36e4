"""A language model of English learns Spanish: whose vocabulary? And a classifier of English texts reads Spanish ones: with which language model?

    FASTFORMERS_DATA=... python benchmarks/languages.py --work DIR

1. Vocabulary: wiki-mini goes on with `--tokens` million tokens of Spanish Wikipedia, with its own tokenizer of English, or with a Spanish one (`match_vocab`); beside the Spanish one with random weights. Judged on held-out articles by the loss of the masked tokens
   per byte of their text, which does not depend on the tokenizer.
2. Two languages: is a paragraph the first of its article, or a later one? 1,000 English paragraphs to train, 500 English and 500 Spanish ones to read (`test={'en':..., 'es':...}`), half of each kind. The language models: wiki-mini; the Spanish one of (1); and one of
   both languages, wiki-mini with a vocabulary and texts of both in equal shares (`mix_texts`), as many tokens.

`--work` keeps language models and finished rows: the same command goes on after it was stopped.
"""
from classify import Rows, last_only
from common import *

lm = dict(seq_len=128, bs=16, lr=2e-3, mask_rate=.15, drop_mult=0., precision='fp32')
task = dict(max_len=64, bs=16, epochs=4, lr=5e-4, precision='fp32')
n_task,n_held = {'en':2000, 'es':800},30 # articles of the classifier, and of the language model's validation

def articles(lang):
    from fastformers.text.readers import read_texts
    return read_texts(*data_files(f'wiki_{lang}/train.txt.gz')).text.sample(frac=1, random_state=0).tolist()

def lm_rows(arts): return pd.DataFrame(dict(text=arts, is_valid=[i<n_held for i in range(len(arts))]))

def first_or_later(arts, n):
    "`n` paragraphs, half of them the first of their articles"
    rng,rows = np.random.default_rng(0),[]
    for o in arts:
        ps = [p for p in o.split('\n') if len(p)>80]
        if len(ps)<3 or not o.startswith(ps[0]): continue
        first = len(rows)%2==0
        rows.append((ps[0] if first else ps[rng.integers(1, len(ps))], 'first' if first else 'later'))
    if len(rows)<n: raise ValueError(f"expected {n} articles of three paragraphs or more, got {len(rows)}")
    return pd.DataFrame(rows[:n], columns=['text','label'])

def unknown_and_pieces(arts, tok):
    from fastformers.models.vocab import vocab_report
    o = vocab_report(arts[:n_held], tok)
    return dict(pieces=float(o.pieces@o['count']/o['count'].sum()), unknown=100*float(o.unknown@o['count']/o['count'].sum()))

def mix_texts(texts, alpha=.3, size=None, seed=42):
    "Draw `size` characters from `{language: texts}`, each language in proportion to its size**alpha (XLM-R: .3)"
    rng = np.random.default_rng(seed)
    chars = {k:sum(map(len, v)) for k,v in texts.items()}
    parts,res = sum(n**alpha for n in chars.values()),[]
    for k,v in texts.items():
        left = (size or sum(chars.values()))*chars[k]**alpha/parts
        while left>0:
            for i in rng.permutation(len(v)):
                if left<=0: break
                res.append(v[i]); left -= len(v[i])
    return [res[i] for i in rng.permutation(len(res))]

def match_vocab(arch, new, path):
    "Write `arch` with the tokenizer `new`: the embeddings of the same tokens, or the mean of the pieces"
    import transformers
    from fastformers.models.load import load_config, load_hf
    from fastformers.models.vocab import fill_rows, vocab_rows
    from fastformers.text.tokenizer import load_tokenizer
    hf,_ = load_hf(getattr(transformers, load_config(arch).architectures[0]), arch)
    rows = {k:p.detach().clone() for k,p in vocab_rows(hf).items()}
    hf.resize_token_embeddings(len(new), mean_resizing=False)
    fill_rows(hf, rows, new, load_tokenizer(arch))
    for k in ('pad','bos','eos','cls','sep','mask'):
        if hasattr(hf.config, f'{k}_token_id'): setattr(hf.config, f'{k}_token_id', getattr(new, f'{k}_token_id'))
    hf.save_pretrained(path)
    new.save_pretrained(path)
    return path

def language_model(work, name, millions, tok=None, arts=None):
    "The directory of the language model `name`; the figures are in its stage.json"
    from fastformers.models.load import load_config
    from fastformers.text.encode import HFTokenizer
    from fastformers.ulmfit.stage import fine_tune_lm, pretrain_lm
    path,start = work/name,'wiki-mini'
    if not (path/'stage.json').exists():
        tok = tok or start
        df = lm_rows(arts)
        share = millions*1e6/sum(map(len, HFTokenizer(tok).encode_batch(df.text[~df.is_valid].tolist())))
        kw = lm | dict(path=path, epochs=share, valid_col='is_valid', resume=work/f'{name}.checkpoints')
        if name.startswith('random'):
            cfg = load_config(start); cfg.vocab_size = len(tok)
            for k in ('pad','bos','eos','cls','sep'): setattr(cfg, f'{k}_token_id', getattr(tok, f'{k}_token_id'))
            pretrain_lm(df, tok=tok, config=cfg, **kw)
        else: fine_tune_lm(df, start if isinstance(tok, str) else match_vocab(start, tok, work/f'{name}_start'), **kw)
    return path

def facts(path):
    o = json.loads((path/'stage.json').read_text())
    return {k:round(o['metrics'][k], 3) for k in ('nll_per_byte','accuracy')}

def classify(arch, train, test, seed):
    from fastformers.ulmfit.stage import fine_tune_classifier
    stage = fine_tune_classifier(train, arch, test=test, seed=seed, cbs=last_only(), **task)
    hit,sets = np.asarray(stage.test_score, float),np.array(stage.test_sets)
    return {k:round(100*(1-float(hit[sets==k].mean())), 2) for k in test}

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--work', type=Path, default=Path('runs/languages'), help='directory of language models and finished rows')
    p.add_argument('--tokens', type=float, default=.6, help='millions of tokens of each language model')
    args = p.parse_args()
    import torch
    torch.set_num_threads(1)
    quiet()
    logging.getLogger('fastformers').setLevel(logging.ERROR)
    from fastformers.text.tokenizer import load_tokenizer
    from fastformers.text.train_tokenizer import train_tokenizer
    arts = {k:articles(k) for k in ('en','es')}
    print({k:len(v) for k,v in arts.items()}, flush=True)
    held,rest = {k:v[:n_task[k]] for k,v in arts.items()},{k:v[n_task[k]:] for k,v in arts.items()}
    def vocabulary(name, texts): # kept: `train_tokenizer` writes it
        return load_tokenizer(args.work/name) if (args.work/name).is_dir() else train_tokenizer(texts, vocab_sz=8000, path=args.work/name)
    es,both_texts = vocabulary('tok_es', rest['es'][:1500]),mix_texts(rest, alpha=0, size=12_000_000)
    both = vocabulary('tok_both', both_texts)
    models = {'wiki-mini, its vocabulary':language_model(args.work, 'own_es', args.tokens, None, rest['es']),
              'wiki-mini, Spanish vocabulary':language_model(args.work, 'matched_es', args.tokens, es, rest['es']),
              'random weights, Spanish vocabulary':language_model(args.work, 'random_es', args.tokens, es, rest['es'])}
    pieces = {k:unknown_and_pieces(rest['es'], t) for k,t in {'wiki-mini':'wiki-mini', 'Spanish':es, 'both':both}.items()}
    mixed = language_model(args.work, 'both', args.tokens, both, both_texts)
    rows,seeds = Rows(args.work, millions=args.tokens, task=task),[int(o) for o in args.seeds.split(',')]
    def draw(k): return first_or_later(held[k], 1500 if k=='en' else 500)
    en,spanish = draw('en'),draw('es')
    train,test = en[:1000],{'en':en[1000:], 'es':spanish}
    for seed in seeds:
        for arm,arch in {'wiki-mini':'wiki-mini', 'Spanish':models['wiki-mini, Spanish vocabulary'], 'both':mixed}.items():
            rows.get(lambda: classify(arch, train, test, seed), 'es', arm=arm, seed=seed)
    got = pd.DataFrame([r for r in rows.all if r['seed'] in seeds])
    save('languages', args, dict(lm=lm, task=task, millions=args.tokens, seeds=seeds),
         {'a word of Spanish':pieces, 'language models of Spanish':{k:facts(v) for k,v in models.items()},
          'error %':{f'{arm}, read in {k}':stat(g[k]) for arm,g in got.groupby('arm', sort=False) for k in ('en','es')}})
    print((results/'languages.json').read_text())

if __name__=='__main__': main()
