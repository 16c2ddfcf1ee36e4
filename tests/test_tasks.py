"Tasks with outputs for tokens or for sequences: tags, spans, choice. From training to a directory and back, in windows, with each head, by each way in"
import numpy as np, pandas as pd, pytest, torch
from fastai.learner import load_learner
from fastcore.foundation import L
from transformers import AutoModelForMaskedLM, AutoModelForMultipleChoice, AutoModelForQuestionAnswering, AutoModelForTokenClassification, AutoTokenizer, pipeline
from fastformers import cli
from fastformers.callback.auxiliary_lm import AuxiliaryLM
from fastformers.callback.regularize import RDrop
from fastformers.data.block import tokenizer_of
from fastformers.inference.predictor import Ensemble, from_hf
from fastformers.tasks.spans import answer_scores
from fastformers.tasks.core import task_of
from fastformers.tasks.tags import Tags
from fastformers.learner.core import classifier_learner
from fastformers.models.heads import PoolingHead, TokenHead
from fastformers.papers.lstm_head import LSTMHead
from fastformers.testing import tiny_choice, tiny_spans, tiny_tags
from fastformers.data.labels import lm_texts
from fastformers.learner.evaluate import class_scores, evaluate
from fastformers.ulmfit.stage import fine_tune_classifier
from test_contracts_common import *

pytestmark = pytest.mark.exact

tables = dict(tags=(tiny_tags(), {}), choice=(tiny_choice(), dict(text_col=['text','candidates'], task='choice')),
              spans=(tiny_spans(), dict(text_col=['question','context'], label_col=['answer_text','answer_start'])))
rich = 'bert gpt2 modernbert'.split()
narrow = dict(max_len=20, windows=9, overlap=5)
hf_class = dict(tags=AutoModelForTokenClassification, spans=AutoModelForQuestionAnswering, choice=AutoModelForMultipleChoice)

def data(kind, family, df=None, **kwargs):
    own,cols = tables[kind]
    return classifier_dls(own if df is None else df, tiny_tok(family), bs=5, device='cpu', **cols, **kwargs)

def trained(kind, family, head=None, epochs=1, cbs=None, **kwargs):
    torch.manual_seed(0)
    learn = quiet(classifier_learner(data(kind, family, **kwargs), tiny_arch(family), head=head, cbs=cbs))
    learn.fit(epochs, 1e-3)
    loud(learn.model, by=3.)
    return learn

def inputs(kind, df=None):
    "What a `Predictor` takes"
    df = tables[kind][0] if df is None else df
    return df.text.tolist() if kind=='tags' else [*zip(*(df[c] for c in tables[kind][1]['text_col']))]

def doubled(kind):
    "The table with long texts: each row beside the next three"
    df = tables[kind][0]
    def four(c): return [[df[c].iloc[(i+j)%len(df)] for j in range(4)] for i in range(len(df))]
    if kind=='spans': return df.assign(context=[*map(' '.join, four('context'))])
    return df.assign(**{c:[sum(o, []) for o in four(c)] for c in ('text','label')})

cases = [(k,f,h,w) for k in tables for f in rich for h in (None,'hf') for w in ((0,1) if k!='choice' and f!='modernbert' else (0,)) if (k,f,h)!=('choice','gpt2','hf')]

@pytest.mark.parametrize('kind,family,head,windows', cases)
def test_a_directory_answers_as_its_learner(kind, family, head, windows, tmp_path):
    df = doubled(kind) if windows else tables[kind][0]
    learn = trained(kind, family, head, df=df, **narrow if windows else {})
    if windows: assert max(int(x.sequence_starts.sum()) for x,_ in learn.dls.train_ds)>1
    preds,_ = learn.get_preds(dl=learn.dls.test_dl(df))
    p = from_hf(learn.to_hf(tmp_path/'o'), device='cpu')
    for kw in ({}, dict(bs=2)):
        got = p.scores(inputs(kind, df), **kw)
        assert len(got)==len(preds)
        for a,b in zip(got, preds):
            n = min(len(a), len(b)) # more where a batch had longer rows
            assert gap(a[:n], b[:n])<2e-5 and (kind=='tags' or not a[n:].any() and not b[n:].any())
    again = quiet(classifier_learner(learn.dls, tmp_path/'o', head=head))
    for a,b in zip(again.get_preds(dl=learn.dls.test_dl(df))[0], preds): assert gap(a, b)<2e-5
    assert not again.model.loaded.new
    if head=='hf':
        _,info = hf_class[kind].from_pretrained(tmp_path/'o', output_loading_info=True)
        assert not info['missing_keys'] and not info['unexpected_keys']

def test_the_pipeline_of_transformers_opens_tags(tmp_path):
    trained('tags', 'bert', 'hf').to_hf(tmp_path/'o')
    words,p = tables['tags'][0].text[0],from_hf(tmp_path/'o', device='cpu')
    scores = p.scores([words])[0]
    pipe = pipeline('token-classification', str(tmp_path/'o'), device='cpu', ignore_labels=[])
    first = [o for o in pipe(' '.join(words)) if not o['word'].startswith('##')] # a word's tag is that of its first piece
    assert len(first)==len(words)
    for o,row in zip(first, scores):
        assert o['entity']==p.task.labels[row.argmax()] and abs(o['score']-float(row.max()))<1e-5

@pytest.mark.parametrize('family', rich)
def test_an_answer_is_that_of_the_plain_computation(family, tmp_path):
    "transformers' own model and tokenizer, a softmax over the first token and those of the context, every span tried"
    path = trained('spans', family, 'hf').to_hf(tmp_path/'o')
    tok,hf = AutoTokenizer.from_pretrained(path),AutoModelForQuestionAnswering.from_pretrained(path).eval()
    for (q,c),got in zip(inputs('spans')[:8], from_hf(path, device='cpu')(inputs('spans')[:8])):
        e = tok(q, c, return_tensors='pt', return_offsets_mapping=True)
        at = [0, *(i for i,o in enumerate(e.sequence_ids(0)) if o==1)]
        chars = e.pop('offset_mapping')[0].tolist()
        with torch.no_grad(): o = hf(**{k:v for k,v in e.items() if family!='modernbert' or k!='token_type_ids'})
        start,end = (v[0,at].softmax(0) for v in (o.start_logits, o.end_logits))
        spans = [(0,0)]+[(i,j) for i in range(1, len(at)) for j in range(i, min(i+30, len(at)))]
        i,j = max(spans, key=lambda o: float(start[o[0]]*end[o[1]]))
        assert abs(float(start[i]*end[j])-got['score'])<1e-5
        assert got['answer']==(c[chars[at[i]][0]:chars[at[j]][1]].strip() if j else '') and c[got['start']:got['end']]==got['answer']

@pytest.mark.parametrize('kind', ['tags','spans'])
def test_windows_change_nothing_where_a_text_fits(kind):
    a,b = data(kind, 'bert', max_len=96),data(kind, 'bert', max_len=96, windows=4, overlap=8)
    for (x,y),(v,w) in zip([*a.train_ds, *a.valid_ds], [*b.train_ds, *b.valid_ds]): assert torch.equal(x, v) and torch.equal(y, w)

@pytest.mark.parametrize('family', 'bert roberta xlm_roberta xlnet gpt2 llama'.split())
@pytest.mark.parametrize('kind', ['tags','spans'])
def test_targets_are_the_same_tokens_in_windows(kind, family):
    df = doubled(kind)
    if kind=='spans': df = df.assign(answer_start=[max(c.find(a), 0) for c,a in zip(df.context, df.answer_text)])
    tok = 'xlm-roberta' if family=='xlm_roberta' else family
    a,b = data(kind, tok, df, max_len=512),data(kind, tok, df, max_len=40, windows=12, overlap=11)
    assert sum(int(x.sequence_starts.sum()) for x,_ in b.train_ds)>len(b.train_ds)
    for (x,y),(v,w) in zip(a.train_ds, b.train_ds):
        assert torch.equal(x.ids[x.predicted], v.ids[v.predicted]) and torch.equal(y, w)

def test_an_answer_that_is_cut_off_is_trained_as_none():
    df = tiny_spans()
    df = df[df.answer_text!=''].reset_index(drop=True)
    dls = data('spans', 'bert', df, max_len=16)
    assert not task_of(dls).blanks and any(y.tolist()==[-1,-1] for _,y in dls.train_ds)
    assert task_of(data('spans', 'bert')).blanks
    learn = trained('spans', 'bert', df=df, max_len=16)
    assert all(int(o[1])>0 for o in learn.get_preds(with_decoded=True)[2])

@pytest.mark.parametrize('max_len', [None,14])
def test_metrics_of_spans_are_the_scores_of_the_texts(max_len, tmp_path):
    "Also where answers are cut off: each is compared with the whole answer"
    df,learn = tiny_spans(),trained('spans', 'bert', epochs=15, max_len=max_len)
    if max_len: assert any(int(y[0])<0 for _,y in learn.dls.valid_ds)
    held = df[df.is_valid]
    answers = from_hf(learn.to_hf(tmp_path/'o'), device='cpu')(inputs('spans', held))
    want = np.array([answer_scores(o['answer'], t) for o,t in zip(answers, held.answer_text)])
    metrics,score,weight = evaluate(learn)
    assert abs(metrics['exact_match']-want[:,0].mean())<1e-6 and abs(metrics['f1']-want[:,1].mean())<1e-6
    assert np.allclose(score, want[:,1]) and (weight==1).all()

def test_always_no_answer_is_right_only_where_there_is_none():
    df,dls = tiny_spans(),data('spans', 'bert', max_len=12)
    def none(x): o = torch.zeros(len(x), x.shape[1], 2); o[:,0] = 99; return o
    f1 = torch.cat([task_of(dls).f1(none(x), y, x) for x,y in dls.valid])
    assert float(f1.mean())==(df.answer_text[df.is_valid]=='').mean()<.5

def test_blank_answers_come_in_several_forms():
    df = tiny_spans()
    same = [df.assign(answer_text=df.answer_text.where(df.answer_text!='', None)), df.assign(answer_start=df.answer_start.where(df.answer_text!='', float('nan')).astype(object))]
    want = [y.tolist() for _,y in data('spans', 'bert').train_ds]
    for o in same: assert [y.tolist() for _,y in classifier_dls(o, tiny_tok('bert'), task='spans', **tables['spans'][1]).train_ds]==want

@pytest.mark.parametrize('family,head', [(f,None) for f in rich+['xlnet']]+[('bert','hf'), ('xlnet','hf')])
def test_a_candidate_is_read_by_itself(family, head):
    "Its output depends neither on the other candidates, nor on their number and order, nor on the batch"
    learn = trained('choice', family, head)
    tok,m = tokenizer_of(learn.dls),learn.model.eval()
    rows = [('A man plays.', 'He makes music.', 'It rains.', 'A long sentence about the weather in the old town.'), ('A man plays.', 'It rains.', 'He makes music.')]
    with torch.no_grad(): (a,b),alone = m(batch(tok, rows)),m(batch(tok, rows[1:]))[0]
    most = 2e-5*max(1., float(a.abs().max()))
    assert b[2]<-1e30 and gap(a[:2], b[[1,0]])<most and gap(alone, b[:2])<most
    assert gap(a[0], a[1])>1e-4

# ---- everything else that a learner does

@pytest.mark.parametrize('kind', ['spans','choice'])
def test_verbs_of_a_learner(kind, tmp_path, shown):
    learn = trained(kind, 'bert')
    learn.dls.show_batch(); learn.show_results(max_n=3)
    from fastai.interpret import Interpretation
    Interpretation.from_learner(learn).plot_top_losses(3)
    assert [[*o[0]] for o in shown]==[['text','target'], ['text','target','predicted'], ['text','target','predicted','loss']]
    df = tables[kind][0]
    item = inputs(kind)[1]
    dec,target,probs = learn.predict(item)
    got = from_hf(learn.to_hf(tmp_path/'o'), device='cpu')(item)[0]
    assert dec==(got['answer'] if kind=='spans' else got['index']) and gap(probs.sum(0), torch.ones(probs.shape[1:]))<1e-5
    preds,y,loss = learn.get_preds(with_loss=True)
    assert isinstance(preds, L)==(kind=='spans') and len(preds)==len(y)==len(loss)==df.is_valid.sum()
    assert abs(float(loss.mean())-learn.validate()[0])<1e-4
    learn.export(tmp_path/'l.pkl')
    assert gap(load_learner(tmp_path/'l.pkl').predict(item)[2], probs)<1e-6

@pytest.mark.parametrize('kind', tables)
def test_an_ensemble_averages_their_scores(kind, tmp_path):
    a,b = (from_hf(trained(kind, 'bert', epochs=n, **({} if kind=='choice' else narrow)).to_hf(tmp_path/f'{n}'), device='cpu') for n in (1,2))
    both,texts = Ensemble([a,b]),inputs(kind)[:5]
    for p,q,o in zip(a.scores(texts), b.scores(texts), both.scores(texts)): assert gap((p+q)/2, o)<1e-6 and gap(p, q)>1e-4
    assert len(both(texts))==5 and Ensemble([a,a])(texts)==a(texts)
    if kind=='choice': return
    other = from_hf(trained(kind, 'bert', max_len=18).to_hf(tmp_path/'o'), device='cpu')
    with pytest.raises(ValueError, match=f'an ensemble for {kind} read the same tokens; train them with one tokenizer'): Ensemble([a,other])

def test_a_head_for_texts_is_refused_for_tokens():
    for kind in ('tags','spans'):
        for head in (LSTMHead, PoolingHead, LSTMHead(32, 2)):
            with pytest.raises(ValueError, match=f'the task {kind} needs an output for each token, .*Head has one for each text; leave out `head`'):
                classifier_learner(data(kind, 'bert'), tiny_arch('bert'), head=head)
        with pytest.raises(ValueError, match="`head` 'LSTMHaed' is unknown; did you mean LSTMHead"): classifier_learner(data(kind, 'bert'), tiny_arch('bert'), head='LSTMHaed')
    with pytest.raises(ValueError, match='each text, TokenHead has one for each token'): classifier_learner(classifier_dls(tiny_df(), tiny_tok(), device='cpu'), tiny_arch('bert'), head=TokenHead)
    with pytest.raises(ValueError, match='leave out `windows` and `pairing`'): data('choice', 'bert', pairing='siamese')

@pytest.mark.parametrize('kind', ['spans','choice'])
def test_callbacks_work_with_rows_of_outputs(kind):
    learn = trained(kind, 'bert', cbs=[RDrop(.5), AuxiliaryLM(.5)])
    assert all(np.isfinite(learn.recorder.losses)) and float(learn.r_drop.divergence)>0

@pytest.mark.parametrize('kind', ['tags','spans','choice'])
def test_a_stage_reports_them(kind, tmp_path):
    df,cols = tables[kind]
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(tiny_arch('bert')).save_pretrained(tmp_path/'arch'); tiny_tok('bert').save_pretrained(tmp_path/'arch')
    stage = fine_tune_classifier(df, tmp_path/'arch', tmp_path/'o', test=df[:8], epochs=1, bs=8, precision='fp32', **cols)
    assert len(stage.score)==df.is_valid.sum() and len(stage.test_score)==8 and from_hf(tmp_path/'o', device='cpu').task.name==kind
    texts,_ = lm_texts(df, np.flatnonzero(~df.is_valid), text_col=cols.get('text_col','text'))
    assert len(texts)>8 and all(isinstance(o, str) for o in texts)

@pytest.mark.parametrize('kind', ['tags','several','spans'])
def test_an_answer_of_nothing_is_a_rival(kind, caplog):
    df,cols = tables.get(kind, (tiny_df(), {}))
    if kind=='tags': df = df.assign(label=[['O']*len(o) if i%3 else o for i,o in enumerate(df.label)])
    if kind=='several': df = df.assign(label=[[] if i%5 else [o] for i,o in enumerate(df.label)])
    stage = fine_tune_classifier(df, tiny_arch('bert'), tok=tiny_tok('bert'), epochs=1, lr=1e-6, bs=8, precision='fp32', **cols)
    held = df[df.is_valid] if 'is_valid' in df else None
    empty = {'tags':lambda o: {*o.label}=={'O'}, 'spans':lambda o: not o.answer_text}
    if kind in empty: assert stage.verdict.rivals['empty answer']==pytest.approx(held.apply(empty[kind], axis=1).mean())
    assert 0<stage.verdict.rivals['empty answer']<1 and 'empty answer' in caplog.text

# ---- tags as other tools write them

places = [('Anna Berg lives in New York.', [(0,9,'PER'), (19,27,'LOC')]), ('Oslo is cold.', [(0,4,'LOC')]), ('', []), ('Nobody is here.', [])]*6
exports = dict(doccano=lambda a,b,k: [a,b,k], relations=lambda a,b,k: dict(id=1, start_offset=a, end_offset=b, label=k),
               spacy=lambda a,b,k: dict(start=a, end=b, label=k), label_studio=lambda a,b,k: dict(start=a, end=b, text='', labels=[k]))
rows_of_spans = pd.DataFrame([(o, [*map(list, s)], i%4<3 and i>15) for i,(o,s) in enumerate(places)], columns=['text','label','is_valid'])

@pytest.mark.parametrize('scheme', ['B I I','I I I','B I L','B I E'])
def test_a_span_is_whole_in_every_scheme(scheme):
    task = Tags(['O', *{f'{o}-LOC' for o in scheme.split()+dict(L='U', E='S').get(scheme[-1], 'B').split()}])
    at = [task.labels.index(f'{o}-LOC') for o in scheme.split()]
    scores = 9*torch.eye(task.n_out)[[0,*at,0]]
    assert [o['text'] for o in task.answers(task.scores([scores]), ['to Rio de Janeiro today'])[0]]==['Rio de Janeiro']
    assert task.class_counts(scores[None], torch.tensor([[0,*at,0]]))=={'LOC':[1,1,1]}

@pytest.mark.parametrize('tool', exports)
def test_spans_of_characters_are_read_as_tools_write_them(tool):
    df = rows_of_spans.assign(label=[[exports[tool](*o) for o in s] for _,s in places])
    dls = classifier_dls(df, tiny_tok('bert'), device='cpu')
    assert [dls.vocab[i] for i in dls.train_ds[0][1]]==['B-PER','I-PER','O','O','B-LOC','I-LOC','O'] and len(dls.train_ds[2][1])==0
    raw = dls.test_dl(df, with_labels=True).dataset
    assert raw[0][1].tolist()==dls.train_ds[0][1].tolist()

def test_spans_of_characters_go_in_and_come_out(tmp_path, capsys):
    df = rows_of_spans
    AutoModelForMaskedLM.from_config(tiny_arch('bert')).save_pretrained(tmp_path/'arch'); tiny_tok('bert').save_pretrained(tmp_path/'arch')
    df.to_json(tmp_path/'t.jsonl', orient='records', lines=True)
    def run(*args): return cli.main([*map(str, args)])
    assert run('classify', tmp_path/'t.jsonl', '--arch', tmp_path/'arch', '--output', tmp_path/'m', '--epochs', 40, '--lr', .01, '--bs', 8)==0
    assert '\nLOC ' in (said := capsys.readouterr().out) and 'B-LOC' not in said # by span, not by tag
    by = class_scores(p := from_hf(tmp_path/'m', device='cpu'), df)
    assert [*by.index]==['LOC','PER','macro avg'] and by.support.tolist()==[12,6,18] and by['f1-score'].min()==1
    assert [(o['start'],o['end'],o['label']) for o in p(places[0][0])[0]]==places[0][1]
    assert run('predict', tmp_path/'m', '--csv', tmp_path/'t.jsonl', '--out', tmp_path/'out.csv')==0
    got = pd.read_csv(tmp_path/'out.csv', keep_default_na=False).iloc[0]
    assert [got[f'predicted_{o}'] for o in ('label','start','end')]==['Anna Berg: PER; New York: LOC','0; 19','9; 27']

def test_odd_spans_and_tags_as_text_are_named(caplog):
    df = rows_of_spans
    for odd in ([[0,99,'X']], [dict(start=0, end=2)], [[4,2,'X']]):
        with pytest.raises(ValueError, match="expected a span such as"): classifier_dls(df.assign(label=[odd, *df.label[1:]]), tiny_tok('bert'))
    classifier_dls(df.assign(label=[[[0,6,'PER']], *df.label[1:]]), tiny_tok('bert'))
    assert sum('1 spans of characters' in o and "'Anna B'" in o for o in caplog.messages)==1
    words = pd.DataFrame(dict(text=[f'to {o}' for o in range(16)], label=['O B-LOC','O O']*8))
    classifier_dls(words, tiny_tok('bert')); classifier_dls(words.assign(label=['B-LOC','O']*8), tiny_tok('bert'))
    assert "task='tags'" in caplog.text and 'tags of single words' in caplog.text

# ---- the command line

@pytest.mark.parametrize('ext', ['csv','jsonl'])
@pytest.mark.parametrize('kind', ['spans','choice'])
def test_commands(kind, ext, tmp_path, capsys):
    df,cols = tables[kind]
    AutoModelForMaskedLM.from_config(tiny_arch('bert')).save_pretrained(tmp_path/'arch'); tiny_tok('bert').save_pretrained(tmp_path/'arch')
    text_col = ','.join(cols['text_col'])
    if ext=='jsonl': df.to_json(tmp_path/'t.jsonl', orient='records', lines=True)
    elif kind=='choice': # a column for each candidate
        wide = pd.DataFrame(df.candidates.tolist(), columns=[*'abc']).fillna('')
        pd.concat([df.drop(columns='candidates'), wide], axis=1).to_csv(tmp_path/'t.csv', index=False); text_col = 'text,a,b,c'
    else: df.to_csv(tmp_path/'t.csv', index=False)
    def run(*args): return cli.main([*map(str, args)])
    label = ','.join(cols.get('label_col', ['label']))
    named = ['--task','choice'] if kind=='choice' else []
    assert run('classify', tmp_path/f't.{ext}', '--text-col', text_col, '--label-col', label, *named, '--arch', tmp_path/'arch', '--output', tmp_path/'m', '--epochs', 1, '--bs', 8)==0
    assert run('predict', tmp_path/'m', '--csv', tmp_path/f't.{ext}', '--text-col', text_col, '--out', tmp_path/'out.csv')==0
    got = pd.read_csv(tmp_path/'out.csv', keep_default_na=False)
    want = from_hf(tmp_path/'m', device='cpu')(inputs(kind))
    names = dict(spans=['answer','score','start','end'], choice=['predicted_label','predicted_score','predicted_index'])[kind]
    assert len(got)==len(df) and list(got)[-len(names):]==names
    assert got[names[0]].tolist()==[[*o.values()][0] for o in want]
    capsys.readouterr()
    assert run('predict', tmp_path/'m', *(o for v in inputs(kind)[0] for o in ([v] if isinstance(v, str) else v)))==0
    assert [*want[0].values()][0] in capsys.readouterr().out

# ---- real questions

def test_answers_of_mlqa_are_found_in_the_tokens(data_dir):
    df = pd.read_csv(data_dir/'qa_en/mlqa_dev.csv.gz', keep_default_na=False)[:300]
    dls = classifier_dls(df, 'minilm', ['question','context'], ['answer_text','answer_start'], max_len=128, windows=12, overlap=32, device='cpu')
    task,exact = task_of(dls),0
    rows = [*zip(df.question, df.context)]
    for t,(a,b),(_,chars,cut),(_,c) in zip(df.answer_text, task.read(df, ['answer_text','answer_start']), task.tok.aligned(rows), rows):
        text = c[chars[a,0]:chars[b,1]]
        assert a>0 and t.strip() in text and not len(cut)
        exact += text==t
    assert exact>.97*len(df)
