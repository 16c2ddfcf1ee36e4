"""Does a loss at all tokens help without a generator? All-Tokens MLM (ELECTRA, section 3.4) with mask tokens, beside `MLM`

    python benchmarks/all_tokens.py      # some two minutes of one core, on the texts of the package

BERT of 2 x 64, WordPiece of 2,000 pieces, embeddings that start from counts, two passes over the 15,000 utterances for training of `intents()`, rows of 64 tokens, batches of 32 rows, Adam at 3e-3 with one cycle, one thread, fp32.
On the 3,000 utterances for validation: the loss at mask tokens, the same for all, where nothing can be copied; and which of ten domains, by logistic regression on mean states, from 2,000 labelled training utterances."""
import tempfile, torch
from common import *

sizes = dict(hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4)
seq_len,bs,lr,epochs = 64,32,3e-3,2
arms = {'no training':'mlm', 'MLM':'mlm', 'all tokens':'all_tokens_mlm', 'all tokens, D from 1/2':'all_tokens_mlm'}

def run(tok, train, dev, arm, seed):
    "Train one network: its figures, and for each row of `dev` whether the domain is right"
    import fastformers.learner.counts # `start_from_counts`
    from fastai.torch_core import set_seed
    from fastformers.data.block import lm_dls
    from fastformers.inference.predictor import from_hf
    from fastformers.learner.core import lm_learner
    from fastformers.models.families import evaluating
    from fastformers.objectives.core import objectives
    from fastformers.objectives.mlm import MLM
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from transformers import BertConfig
    set_seed(seed)
    both = pd.concat([train.assign(is_valid=False), dev.assign(is_valid=True)], ignore_index=True)
    def data(o): return lm_dls(both, tok, o, seq_len=seq_len, bs=bs, seed=seed, packing='full-sentences', device='cpu')
    dls,masked = data(objectives[arms[arm]](tok, seed=seed)),MLM(tok, replace=(1.,0.))
    learn = lm_learner(dls, BertConfig(vocab_size=len(tok), pad_token_id=tok.pad_token_id, **sizes), precision='fp32')
    learn.start_from_counts()
    start = time.process_time()
    if '1/2' in arm: torch.nn.init.zeros_(learn.model.hf.copy_gate.bias)
    if arm!='no training':
        with learn.no_bar(): learn.fit_one_cycle(epochs, lr)
    seconds = round(time.process_time()-start)
    with evaluating(learn.model): parts = [(float(masked.loss_func(learn.model(x), y)), masked.weight(None, y)) for x,y in data(masked).valid]
    few = train.sample(2000, random_state=seed)
    with tempfile.TemporaryDirectory() as d:
        p = from_hf(learn.to_hf(f'{d}/lm'), device='cpu')
        a,b = (p.vectors(o.text.tolist()).numpy() for o in (few,dev))
    right = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(a, few.label).predict(b)==dev.label.to_numpy()
    n = sum(w for _,w in parts)
    return dict(seed=seed, arm=arm, loss=round(sum(l*w for l,w in parts)/n, 3), tokens=int(n), domain=round(100*float(right.mean()), 1), seconds=seconds), right

if __name__=='__main__':
    p = parser(__doc__)
    p.set_defaults(seeds='1,2')
    args = p.parse_args()
    quiet()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    from fastformers.stats import paired_bootstrap
    from fastformers.text.corpora import intents
    from fastformers.text.train_tokenizer import train_tokenizer
    train,dev = (o for k,o in intents().groupby('split') if k!='test')
    tok = train_tokenizer(train.text, 'wordpiece', 2000)
    rows,right = [],{o:[] for o in arms}
    for seed in args.seeds.split(','):
        for arm in arms:
            o,r = run(tok, train, dev, arm, int(seed))
            print(o, flush=True)
            rows.append(o); right[arm].append(r)
    gains = {k:[round(100*v, 1) for v in paired_bootstrap(np.stack(o), np.stack(right['MLM']))] for k,o in right.items() if k!='MLM'}
    print('domain, beside MLM, with a 95 % interval', gains)
    save('all_tokens', args, dict(sizes, seq_len=seq_len, bs=bs, lr=lr, epochs=epochs, arms=arms, precision='fp32'), {'rows':rows, 'domain, points beside MLM':gains})
