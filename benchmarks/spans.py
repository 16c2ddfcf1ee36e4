"""Answers to questions: the task `spans` beside Hugging Face's `Trainer`, the same body, rows, epochs, batch size and precision

    FASTFORMERS_DATA=... python benchmarks/spans.py --work DIR            # a rate for each contender, of two, on held-out questions of TyDi (one seed); then the seeds
    FASTFORMERS_DATA=... python benchmarks/spans.py --work DIR --final    # and MLQA, another kind of question

TyDi QA (gold passages, English), 1,200 questions of its 3,696 (`--full`: all), and those on 400 other contexts for validation; test: MLQA, 1,148 questions. MiniLM, windows of 256 tokens that overlap by 64, 2 epochs, batches of 16, float32. Ours is `fine_tune_classifier` as it
comes: a softmax over all windows of a context. The `Trainer` has `AutoModelForQuestionAnswering` on single windows, as transformers' example for SQuAD: a window without the answer has the answer "none", the best span of all windows wins; linear
decay with a tenth of warm-up. Scores: exact match and F1 of SQuAD, in %; F1 chooses.
"""
import numpy as np
from classify import last_only
from common import *
from glue import against_trainer, hf_trained

lrs,epochs,bs,max_len,overlap,longest,n_train = (1e-4,2e-4),2,16,256,64,30,1200
files = ['qa_en/tydiqa_train.csv.gz','qa_en/mlqa_dev.csv.gz']

def load(final, few, full):
    "(training and validation rows, test rows or None); all questions on a context are in one part"
    train,test = map(read, data_files(*files))
    contexts = train.context.drop_duplicates().sample(frac=1, random_state=42)
    train = train.assign(is_valid=train.context.isin(contexts[:400])).sample(frac=1, random_state=42)
    if not full: train = pd.concat([train[~train.is_valid][:n_train], train[train.is_valid]])
    if few: train,test = train.groupby('is_valid').head(few),test[:few]
    return train.reset_index(drop=True), test if final else None

def scores(answers, df):
    "Exact match and F1 in %"
    from fastformers.tasks.spans import answer_scores
    em,f1 = 100*np.mean([answer_scores(a, t) for a,t in zip(answers, df.answer_text)], 0)
    return dict(em=round(float(em),2), f1=round(float(f1),2))

def parts(answers_of, df, test):
    res = {'validation':scores(answers_of(df[df.is_valid]), df[df.is_valid])}
    return res if test is None else res | {'test':scores(answers_of(test), test)}

def ours(df, test, seed, lr):
    from fastformers.data.block import tokenizer_of
    from fastformers.inference.predictor import Predictor
    from fastformers.tasks.core import task_of
    from fastformers.ulmfit.stage import fine_tune_classifier
    learn = fine_tune_classifier(df, 'minilm', text_col=['question','context'], label_col=['answer_text','answer_start'], valid_col='is_valid', max_len=max_len, windows=8, overlap=overlap,
                                 bs=bs, epochs=epochs, lr=lr, seed=seed, precision='fp32', cbs=last_only()).learner
    answer = Predictor(learn.model, tokenizer_of(learn.dls), task_of(learn.dls), True, learn.dls.device)
    return parts(lambda part: [o['answer'] for o in answer([*zip(part.question, part.context)])], df, test)

def trainer(df, test, seed, lr):
    import torch
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer, DataCollatorWithPadding, set_seed
    from fastformers.hub import resolve_arch
    path = str(resolve_arch('minilm'))
    tok = AutoTokenizer.from_pretrained(path)
    def windows(part):
        "A row for each window: inputs, positions of the answer (0 where it is not there), number of the question, characters of the context's tokens"
        e = tok(part.question.tolist(), part.context.tolist(), truncation='only_second', max_length=max_len, stride=overlap, return_overflowing_tokens=True, return_offsets_mapping=True)
        of,rows = part.iloc[e['overflow_to_sample_mapping']],[]
        for i,(n,a,s) in enumerate(zip(e['overflow_to_sample_mapping'], of.answer_text, of.answer_start)):
            chars = [o if q==1 else None for o,q in zip(e['offset_mapping'][i], e.sequence_ids(i))]
            at = [j for j,o in enumerate(chars) if o and o[1]>s and o[0]<s+len(a)]
            whole = at and chars[at[0]][0]<=s and chars[at[-1]][1]>=s+len(a)
            rows.append(dict(inputs={k:e[k][i] for k in ('input_ids','token_type_ids','attention_mask')}, first=at[0] if whole else 0, last=at[-1] if whole else 0, n=n, chars=chars))
        return rows
    def inputs(rows): return [{**o['inputs'], 'start_positions':o['first'], 'end_positions':o['last']} for o in rows]
    set_seed(seed)
    model = AutoModelForQuestionAnswering.from_pretrained(path)
    with hf_trained(model, inputs(windows(df[~df.is_valid])), DataCollatorWithPadding(tok), seed, lr, epochs, bs) as t:
        def answers(part):
            rows = windows(part)
            (starts,ends),best = t.predict(inputs(rows)).predictions[:2],{}
            for o,s,e in zip(rows, starts, ends):
                at = np.array([j for j,c in enumerate(o['chars']) if c])
                both = np.where(np.tril(np.triu(np.ones((len(at),)*2)), longest-1)>0, s[at][:,None]+e[at], -np.inf)
                i,j = divmod(int(both.argmax()), len(at))
                if o['n'] not in best or both[i,j]>best[o['n']][0]: best[o['n']] = both[i,j], o['chars'][at[i]][0], o['chars'][at[j]][1]
            return [c[best[n][1]:best[n][2]] for n,c in enumerate(part.context)]
        return parts(answers, df, test)

if __name__=='__main__':
    against_trainer('spans', __doc__, 'all questions, not 1,200', load, dict(ours=ours, trainer=trainer), lrs, {'em %':lambda o: o['em'], 'f1 %':lambda o: o['f1']},
                    dict(n_train=n_train), epochs=epochs, bs=bs, max_len=max_len, overlap=overlap)
