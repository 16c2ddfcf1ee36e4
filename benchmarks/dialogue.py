"""Dialogue: the reply among ten, and its perplexity, beside word overlap and a sentence encoder (`papers.transfertransfo`)

    FASTFORMERS_DATA=... python benchmarks/dialogue.py

There is no set of dialogues among the data. Two sets of questions are made into dialogues: a question of TyDi QA or MLQA, and as the reply the sentence of the article that holds the answer; two questions on one article are a dialogue of four turns. A tenth of the articles is for validation; each of their replies is among nine
replies of other dialogues. Chosen is the candidate nearest to the last question by TF-IDF (idf of the training replies), the same by the mean vectors of MiniLM, untrained, or the highest score of `Dialogue`: on a small GPT-2 from random weights, its embeddings from counts, and on MiniLM, whose attention is made causal (`is_decoder` in its config).
"""
import re, tempfile
from common import *

def sentence_with(context, start):
    "The sentence of `context` that holds the character `start`"
    ends = [0, *(m.end() for m in re.finditer(r'(?<=[.!?])\s+(?=[A-Z])', context)), len(context)]
    return next(context[a:b].strip() for a,b in zip(ends, ends[1:]) if a<=start<b)

def dialogues():
    "Dialogues of two or four turns, a tenth of the articles for validation"
    from fastformers.text.core import text_key
    tydi,mlqa = (pd.read_csv(o) for o in data_files('qa_en/tydiqa_train.csv.gz', 'qa_en/mlqa_dev.csv.gz'))
    rows = []
    for df,article in ((tydi,'context'), (mlqa,'title')):
        for name,g in df.groupby(article, sort=False):
            pairs = [(q.strip(), sentence_with(c, s)) for q,c,s in zip(g.question, g.context, g.answer_start)]
            pairs = [o for o in pairs if all(o) and 4<len(o[1].split())<50]
            rows += [dict(turns=[t for p in pairs[i:i+2] for t in p], is_valid=text_key(name)%10==0) for i in range(0, len(pairs), 2)]
    return pd.DataFrame(rows)

def hits(rows, vectors):
    "Share of `rows` (candidates, the right one first) whose right reply is nearest to the last question, in %, by `vectors` of length 1"
    texts = sorted({o for r in rows for d in r for o in d[-2:]})
    at,v = {o:i for i,o in enumerate(texts)},vectors(texts)
    scores = np.array([[float(v[at[d[-2]]]@v[at[d[-1]]]) for d in r] for r in rows])
    return 100*(scores[:,:1]>scores[:,1:]).all(1).mean()

def tfidf(replies):
    from sklearn.feature_extraction.text import TfidfVectorizer
    vec = TfidfVectorizer(sublinear_tf=True).fit(replies)
    return lambda texts: vec.transform(texts).toarray()

def minilm(texts):
    import torch
    from fastformers.models.core import HFModel
    from fastformers.models.heads import mean_pool
    from fastformers.models.load import load_body
    from fastformers.text.encode import HFTokenizer
    tok,model = HFTokenizer('minilm', max_len=96),HFModel(*load_body('minilm')).eval()
    xs,res = tok.encode_batch(texts),{}
    for at,x in tok.batches(xs):
        with torch.no_grad(): res |= dict(zip(at, torch.nn.functional.normalize(mean_pool(model.states(x), x.real)).numpy()))
    return [res[i] for i in range(len(texts))]

def small(df, vocab_sz=6000, width=128):
    "A tokenizer and a small GPT-2 from random weights"
    from transformers import GPT2Config
    from fastformers.papers.transfertransfo import DialogueTokenizer
    from fastformers.text.train_tokenizer import train_tokenizer
    tok = DialogueTokenizer(train_tokenizer([t for d in df.turns[~df.is_valid] for t in d], 'wordpiece', vocab_sz), max_len=96)
    return tok, GPT2Config(n_embd=width, n_layer=2, n_head=4, vocab_size=len(tok.tok), n_positions=128, bos_token_id=tok.ids[0], eos_token_id=tok.ids[0])

def causal(path):
    "A tokenizer and a directory `path` with MiniLM, where a token sees only those before it"
    from transformers import AutoModel, AutoTokenizer
    from fastformers.hub import resolve_arch
    from fastformers.papers.transfertransfo import DialogueTokenizer
    start = resolve_arch('minilm')
    for o in (AutoModel.from_pretrained(start, is_decoder=True, add_pooling_layer=False), AutoTokenizer.from_pretrained(start)): o.save_pretrained(path)
    return DialogueTokenizer(path, max_len=96), path

def ours(df, seed, tok, arch, epochs, lr, bs=16):
    "Perplexity and hits@1 in % of `Dialogue` on the validation rows, one distractor in training; perplexity by the frequencies of tokens; seconds of training"
    from fastai.torch_core import set_seed
    from fastformers.learner.core import lm_learner
    from fastformers.papers.transfertransfo import Dialogue, dialogue_dls
    import fastformers.learner.counts
    set_seed(seed)
    dls = dialogue_dls(df, Dialogue(tok, seed), n_distractors=(1,9), bs=bs)
    train,valid = (np.bincount(np.concatenate([x.ids[x.predicted] for x, in o]), minlength=len(tok.tok)) for o in (dls.train_ds, dls.valid_ds))
    frequencies = np.exp(-(valid*np.log((train+.5)/(train+.5).sum())).sum()/valid.sum())
    learn,start = lm_learner(dls, arch),time.process_time()
    if not isinstance(arch, str): learn.start_from_counts()
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(epochs, lr)
    _,_,perplexity,share = learn.recorder.values[-1]
    return {'hits@1':100*share, 'perplexity':perplexity, 'perplexity of frequencies':float(frequencies), 'seconds':time.process_time()-start}

if __name__=='__main__':
    from fastformers.papers.transfertransfo import candidate_rows
    import torch
    args,df = parser(__doc__).parse_args(),dialogues()
    torch.set_num_threads(1)
    quiet()
    rows = [*candidate_rows(df.turns[df.is_valid].tolist(), 9)]
    known = {'chance':10., 'word overlap (TF-IDF)':hits(rows, tfidf([t for d in df.turns[~df.is_valid] for t in d[1::2]])), 'MiniLM, untrained':hits(rows, minilm)}
    res,seeds = {'replies':len(rows), 'hits@1':known},[*map(int, args.seeds.split(','))]
    with tempfile.TemporaryDirectory() as tmp:
        for name,start,how in (('Dialogue', small(df), dict(epochs=2, lr=2e-3)), ('Dialogue, from MiniLM', causal(tmp), dict(epochs=1, lr=3e-4, bs=8))):
            res[name] = {}
            for o in seeds:
                res[name][o] = ours(df, o, *start, **how)
                save('dialogue', args, {'data':'tydiqa_train, mlqa_dev', 'dialogues':len(df)}, res)
                print(name, o, res[name][o], flush=True)
