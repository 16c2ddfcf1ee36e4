"""Q4: stage 1 from random weights beside Hugging Face's recipe `run_mlm`: equal tokens and equal time, NLL of masked tokens per byte on equal masks

    FASTFORMERS_DATA=... python benchmarks/stage1.py --work DIR                     # one million tokens and four minutes each: about an hour of one core
    FASTFORMERS_DATA=... python benchmarks/stage1.py --work DIR --size .02 --minutes .1 --seeds 42    # tries the script

ModernBERT of 4 x 128 with a WordPiece of 4,000, English Wikipedia, 15 % masked, batches of 8 x 128, fp32, one thread. Ours is `pretrain_lm`: embeddings from counts (`random embeddings`: without), packed sentences, one cycle. The
`Trainer` joins all texts, cuts them into rows of 128, masks with `DataCollatorForLanguageModeling`, AdamW, linear decay. Both at the better of two rates, chosen on the first seed. Both are measured on the rows and masks of Wikipedia's validation articles.
"""
import tempfile
from classify import Rows
from common import *
from objectives import corpus, network, settings

rates = 1e-3,2e-3
arms = 'ours','random embeddings','Trainer'

def config(tok):
    from fastformers.ulmfit.stage import small_config
    return small_config(tok, family='modernbert', **network)

def ours(texts, tok, path, lr, seed, length, embeddings='counts'):
    from fastformers.ulmfit.stage import pretrain_lm
    pretrain_lm(texts, path, tok, config(tok), seed=seed, precision='fp32', mask_rate=.15, **settings | dict(lr=lr, embeddings=embeddings), **length)

def trainer(texts, tok, path, lr, seed, length):
    import torch
    from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling, Trainer, TrainingArguments, set_seed
    set_seed(seed)
    ids = [i for o in tok(texts)['input_ids'] for i in o]
    n,bs = settings['seq_len'],settings['bs']
    rows = [dict(input_ids=ids[i:i+n]) for i in range(0, len(ids)-n, n)]
    def fit(max_steps):
        torch.manual_seed(seed)
        args = TrainingArguments(str(path/'trainer'), per_device_train_batch_size=bs, learning_rate=lr, max_steps=max_steps, seed=seed, use_cpu=True, report_to='none', save_strategy='no', logging_strategy='no', disable_tqdm=True)
        o = Trainer(AutoModelForMaskedLM.from_config(config(tok)), args, train_dataset=rows, data_collator=DataCollatorForLanguageModeling(tok))
        start = time.perf_counter()
        o.train()
        return o.model,time.perf_counter()-start
    steps = int(length.get('epochs', 0)*len(rows)/bs) or int(60*length['minutes']/fit(30)[1]*30)
    fit(steps)[0].save_pretrained(path)
    tok.save_pretrained(path)

def measured(path, tok):
    "The metrics of the language model in `path` on the validation articles"
    from fastformers.data.block import lm_dls
    from fastformers.learner.core import lm_learner
    from fastformers.text.readers import read_texts
    valid = read_texts(*data_files('wiki_en/valid.txt.gz'))
    dls = lm_dls(pd.concat([valid[:2].assign(is_valid=False), valid.assign(is_valid=True)], ignore_index=True), tok, valid_col='is_valid', packing=settings['packing'], seq_len=settings['seq_len'], bs=32, device='cpu')
    learn = lm_learner(dls, path, precision='fp32')
    with learn.no_bar(), learn.no_logging(): figures = learn.validate()
    return dict(zip(['loss', *(o.name for o in learn.metrics)], map(float, figures)))

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--size', type=float, default=1., help='million tokens')
    p.add_argument('--minutes', type=float, default=4.)
    p.add_argument('--work', type=Path, default=Path('runs/stage1'), help='directory of finished rows')
    args = p.parse_args()
    import torch
    torch.set_num_threads(1)
    quiet()
    logging.getLogger('fastformers').setLevel(logging.ERROR)
    tok,texts,read = corpus(max(1e6*args.size, 5e5*args.minutes)) # nothing here reads half a million tokens in a minute
    first,*seeds = map(int, args.seeds.split(','))
    rows,k = Rows(args.work, size=args.size, minutes_each=args.minutes),int(np.searchsorted(read, 1e6*args.size))+1
    def row(arm, budget, lr, seed):
        part,length = (texts[:k], dict(epochs=1e6*args.size/read[k-1])) if budget=='tokens' else (texts, dict(minutes=args.minutes))
        with tempfile.TemporaryDirectory() as tmp:
            start,path = time.time(),Path(tmp)/'lm'
            if arm=='Trainer': trainer(part, tok, path, lr, seed, length)
            else: ours(part, tok, path, lr, seed, length, 'random' if arm=='random embeddings' else 'counts')
            secs = time.time()-start
            return {'validation':measured(path, tok), 'LM minutes':round(secs/60, 2)}
    def get(arm, budget, lr, seed): return rows.get(lambda: row(arm, budget, lr, seed), arm=arm, budget=budget, lr=lr, seed=seed)
    figures = {}
    for budget in ('tokens','minutes'):
        for arm in arms:
            best = min(rates, key=lambda lr: get(arm, 'tokens', lr, first)['validation']['nll_per_byte'])
            got = [get(arm, budget, best, s) for s in (first, *seeds)]
            def of(metric): return [round(o['validation'][metric], 3) for o in got]
            figures[f'{budget}, {arm}'] = {'lr':best, 'minutes':stat([o['LM minutes'] for o in got]), 'nll_per_byte':of('nll_per_byte'), 'accuracy':of('accuracy')}
            print(budget, arm, figures[f'{budget}, {arm}'], flush=True)
    save('stage1', args, dict(size=args.size, minutes=args.minutes, rates=rates, network=network, settings=settings), {'validation':figures})

if __name__=='__main__': main()
