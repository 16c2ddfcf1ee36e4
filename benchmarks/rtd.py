"""Replaced token detection beside masked language modelling: two small networks from nothing, the same CPU time each, judged by TREC

    FASTFORMERS_DATA=... python benchmarks/rtd.py --work DIR                 # some forty minutes on one core
    FASTFORMERS_DATA=... python benchmarks/rtd.py --work DIR --minutes .2 --megabytes 1 --seeds 42 --epochs 1   # tries the script, writes no result

Articles of the English Wikipedia, a WordPiece tokenizer of 8,000, the ELECTRA body of 4 layers x 256 (embeddings 256 wide), rows of 128 tokens, batches of 16, one thread. `MLM` trains the body with an LM head, `RTD` as the discriminator
beside a generator of a quarter of its width (Clark et al. 2020). A budget is CPU seconds of the process, so that other programs do not count; the rate rises over a tenth of it and falls to 0 at its end. The judge is the validation
rows of TREC, 1,000 drawn from its training rows (the test rows are not read): a logistic regression on the mean of the frozen states, and fine-tuning of the whole. A body with random weights shows what the judge learns by itself.
"""
import time
from classify import Rows, last_only
from common import *

arms = 'MLM','RTD','random'
size = dict(hidden_size=256, embedding_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, max_position_embeddings=128)

def corpus(path, megabytes, seed=0):
    "Articles of `path` in random order, `megabytes` of text"
    from fastformers.text.readers import read_texts
    texts = read_texts(path).text.sample(frac=1, random_state=seed)
    return texts[texts.str.len().cumsum()<megabytes*1e6].tolist()

def questions(path, n_valid=1000, seed=0):
    df = read(path)[['text','label']].drop_duplicates('text').sample(frac=1, random_state=seed, ignore_index=True)
    return df.assign(is_valid=df.index<n_valid)

def budget(seconds, lr, warm=.1):
    "A callback that ends a fit after so much CPU time, with a rate that rises and falls over it"
    from fastai.callback.core import Callback, CancelFitException
    class Budget(Callback):
        order,steps,tokens = 70,0,0
        def before_fit(self): self.start = time.process_time()
        def before_batch(self):
            if not self.training: return
            done = (time.process_time()-self.start)/seconds
            if done>=1: raise CancelFitException
            self.opt.set_hyper('lr', lr*min(done/warm, (1-done)/(1-warm)))
            self.steps += 1
            self.tokens += self.x.numel()
    return Budget()

def pretrain(arm, texts, tok, path, args):
    "Train a language model for the budget, write it to `path`"
    from fastai.torch_core import set_seed
    from transformers import ElectraConfig
    from fastformers.data.block import lm_dls
    from fastformers.learner.core import lm_learner
    from fastformers.objectives.core import all_objectives
    set_seed(42)
    dls = lm_dls(texts, tok, all_objectives()[arm.lower()](tok), valid_pct=.02, seq_len=128, bs=16, packing='full-sentences', device='cpu')
    learn = lm_learner(dls, ElectraConfig(vocab_size=len(tok), **size), precision='fp32')
    clock = budget(60*args.minutes, args.lr)
    with learn.no_bar(), learn.no_logging():
        learn.fit(1000, args.lr, cbs=[clock, last_only()])
        figures = dict(zip(['loss', *(m.name for m in learn.metrics)], map(float, learn.validate())))
    learn.save_encoder(path)
    return dict(validation=figures, steps=clock.steps, tokens=clock.tokens, passes=clock.steps/len(dls.train), weights=sum(p.numel() for p in learn.model.parameters()))

def probe(body, tok, df, max_len=128):
    "Right or wrong for each validation row: logistic regression on frozen features, its strength chosen by cross-validation on the training rows"
    from fastformers.interpret.probes import layer_means
    from fastformers.models.core import HFModel
    from fastformers.text.tokenizer import HFTokenizer
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    x,v = layer_means(HFModel(*body), HFTokenizer(tok, max_len), df.text.tolist())[-1],df.is_valid.to_numpy()
    clf = make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=[1e-4,1e-3,1e-2,1e-1], cv=3, max_iter=200)).fit(x[~v], df.label[~v])
    hits = clf.predict(x[v])==df.label[v].to_numpy()
    return dict(validation=100*hits.mean(), hits=hits.astype(int).tolist())

def fine_tune(arch, tok, df, seed, max_len=128, epochs=4, lr=5e-4, precision='fp32'):
    "Right or wrong for each validation row after fine-tuning all of the network"
    from fastai.torch_core import set_seed
    from fastformers.data.block import classifier_dls
    from fastformers.learner.core import classifier_learner
    set_seed(seed)
    dls = classifier_dls(df, tok, bs=32, seed=seed, max_len=max_len, device='cpu')
    learn = classifier_learner(dls, arch, precision=precision)
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(epochs, lr, cbs=last_only())
    preds,y = learn.get_preds()
    hits = (preds.argmax(-1)==y).int()
    return dict(validation=100*hits.float().mean().item(), hits=hits.tolist())

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--work', type=Path, default=Path('runs/rtd'), help='directory of what is under way')
    p.add_argument('--minutes', type=float, default=8, help='CPU minutes a language model')
    p.add_argument('--megabytes', type=float, default=10, help='of Wikipedia')
    p.add_argument('--epochs', type=int, default=4, help='of fine-tuning')
    p.add_argument('--lr', type=float, default=5e-4, help="of both language models; that of ELECTRA-small")
    args = p.parse_args()
    import torch
    from transformers import ElectraConfig
    from fastformers.models.load import load_body
    from fastformers.text.tokenizer import load_tokenizer
    from fastformers.text.train_tokenizer import train_tokenizer
    from fastformers.ulmfit.report import paired_bootstrap
    torch.set_num_threads(1)
    quiet()
    wiki,trec = data_files('wiki_en/train.txt.gz','trec/train.csv')
    seeds,df = [int(o) for o in args.seeds.split(',')],questions(trec)
    rows = Rows(args.work, minutes_each=args.minutes, megabytes=args.megabytes, epochs=args.epochs, lr=args.lr)
    where,texts = args.work/f'{args.minutes}_{args.megabytes}',[]
    def wikipedia():
        if not texts: texts.extend(corpus(wiki, args.megabytes))
        return texts
    if not (where/'tok').is_dir(): train_tokenizer(wikipedia(), 'wordpiece', 8000, where/'tok')
    tok = load_tokenizer(where/'tok')
    trained = {o:rows.get(lambda: pretrain(o, wikipedia(), tok, where/o, args), arm=o, what='language model') for o in arms[:2]}
    archs = {o:where/o for o in arms[:2]} | {'random':ElectraConfig(vocab_size=len(tok), **size)}
    def body(o):
        torch.manual_seed(0)
        return load_body(archs[o])
    probed = {o:rows.get(lambda: probe(body(o), tok, df), arm=o, what='probe') for o in arms}
    tuned = {o:[rows.get(lambda: fine_tune(archs[o], tok, df, s, epochs=args.epochs), arm=o, what='fine-tuning', seed=s) for s in seeds] for o in arms}
    def gain(a, b): return dict(zip(('difference','low','high'), (round(100*float(o), 2) for o in paired_bootstrap(a, b))))
    figures = {'language models':{k:{n:v for n,v in o.items() if n in ('validation','steps','tokens','passes','weights','minutes')} for k,o in trained.items()},
               'probe accuracy %':{k:round(o['validation'], 2) for k,o in probed.items()},
               'fine-tuned accuracy %':{k:stat([o['validation'] for o in v]) for k,v in tuned.items()},
               'RTD - MLM':{'probe':gain(probed['RTD']['hits'], probed['MLM']['hits']),
                            'fine-tuning':gain([o['hits'] for o in tuned['RTD']], [o['hits'] for o in tuned['MLM']])}}
    print(json.dumps(figures, indent=1), flush=True)
    if args.minutes>=1: save('rtd', args, dict(size=size, minutes=args.minutes, megabytes=args.megabytes, epochs=args.epochs, lr=args.lr, seeds=seeds), figures)

if __name__=='__main__': main()
