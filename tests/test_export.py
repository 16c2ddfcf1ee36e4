"A classifier leaves fastai and gives the same answers; what cannot be opened is refused in a sentence"
import json, logging, pickle
from functools import partial
import numpy as np, pandas as pd, pytest, torch
from fastai.data.all import CategoryBlock, ColReader, ColSplitter, DataBlock, MultiCategoryBlock, RegressionBlock
from fastai.learner import load_learner
from fastai.losses import BCEWithLogitsLossFlat, LabelSmoothingCrossEntropyFlat
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer, pipeline
from fastformers.inference.bundle import hf_classifier
from fastformers.models.core import HFClassifier
from fastformers.data.block import HFTextBlock, tokenizer_of
from fastformers.inference.predictor import Ensemble, from_hf
from fastformers.tasks.core import tasks
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm
from fastformers.models.heads import PoolingHead, cls_pool, concat_pool, mean_pool
from fastformers.models.families import layer_groups
from fastformers.models.load import load_body
from fastformers.inference.stage_json import read_stage
from fastformers.text.train_tokenizer import train_tokenizer
from fastformers.testing import tiny_tags
from test_contracts_common import *

pytestmark = pytest.mark.exact

df = tiny_df()
rich = 'bert roberta gpt2 xlnet deberta-v2 modernbert qwen2'.split()
decoders = 'openai-gpt gpt2 llama mistral qwen2 gemma opt bloom gpt_neox'.split()
odd = texts[:9] + ['', ' ', 'one', 'a long story '*200, '[SEP] <pad> <|endoftext|>']

def frame(kind):
    if kind=='pairs': return tiny_pairs(), ['text_a','text_b']
    new = dict(single=df.label, integers=df.label.map(dict(negative=0, neutral=1, positive=2)), multi=df.label.str.replace('positive', 'positive;long'), regression=df.text.str.len()/100)
    return df.assign(label=new[kind]), 'text'

def learner(family, kind='single', **kwargs):
    torch.manual_seed(0)
    o,cols = frame(kind)
    dls = classifier_dls(o, tiny_tok(family), text_col=cols, bs=16, max_len=100, truncation='head_tail', device='cpu')
    learn = quiet(classifier_learner(dls, tiny_arch(family), **kwargs))
    loud(learn.model, by=4.)
    return learn

cases = [(f,'single',None) for f in rich] + [(f,k,None) for f in ('bert','gpt2') for k in ('multi','regression','pairs','integers')] \
      + [(f,'single','hf') for f in rich] + [('bert','multi','hf'), ('gpt2','regression','hf'), ('roberta','pairs','hf')]

@pytest.fixture(scope='module', params=cases, ids=lambda o: '-'.join(map(str, o)))
def bundle(request, tmp_path_factory):
    family,kind,head = request.param
    learn = learner(family, kind, head=head)
    return learn, kind, head, learn.to_hf(tmp_path_factory.mktemp('bundles')/'clf')

def items(kind): return pairs[:7]+[('',''), ('a','b '*300)] if kind=='pairs' else odd
def wanted(learn, o): return learn.get_preds(dl=learn.dls.test_dl(o))[0]

# ---- the same answers

def test_scores_are_those_of_the_learner(bundle):
    learn,kind,head,path = bundle
    o,p = items(kind),from_hf(path, device='cpu')
    want = wanted(learn, o)
    assert want.std(0).max()>1e-3, 'texts are told apart'
    for kw in ({}, dict(bs=1), dict(bs=3)): assert gap(p.scores(o, **kw), want)<1e-5
    assert gap(p.scores(o[::-1]), want.flip(0))<1e-5

def test_labels_are_those_of_the_learner(bundle):
    learn,kind,head,path = bundle
    o,p = items(kind),from_hf(path, device='cpu')
    want,got = wanted(learn, o),p(o)
    if kind=='regression': assert all(r['label']=='label' and abs(r['score']-float(w))<1e-4 for r,w in zip(got, want))
    elif kind=='multi':
        for r,w in zip(got, want):
            above = {v:float(s) for v,s in zip(learn.dls.vocab, w) if s>.5 or s==w.max()} # each text has a label
            assert set(r['label'])==set(above) and all(abs(above[l]-s)<1e-5 for l,s in zip(r['label'], r['score'])) and r['score']==sorted(r['score'], reverse=True)
    else: assert [r['label'] for r in got]==[learn.dls.vocab[i] for i in want.argmax(1)]
    if kind=='integers': assert {type(r['label']) for r in got}=={int}

def test_a_reopened_learner_has_the_same_head(bundle):
    learn,kind,head,path = bundle
    again = classifier_learner(learn.dls, path, head=head)
    assert gap(wanted(again, items(kind)), wanted(learn, items(kind)))<1e-6

@pytest.mark.parametrize('loss', [LabelSmoothingCrossEntropyFlat(eps=.2), torch.nn.functional.cross_entropy])
def test_the_loss_does_not_change_what_a_score_is(tmp_path, loss):
    p = from_hf(learner('bert', loss_func=loss).to_hf(tmp_path/'o'), device='cpu')
    assert gap(p.scores(texts[:3]).sum(1), torch.ones(3))<1e-5

def test_a_stage_directory_opens_too(tmp_path):
    learn = learner('bert')
    p = from_hf(learn.save_encoder(tmp_path/'stage', stage='classifier'), device='cpu')
    assert gap(p.scores(odd), wanted(learn, odd))<1e-5

def test_a_head_of_ones_own(tmp_path):
    class Mine(torch.nn.Linear):
        def forward(self, h, mask): return super().forward(h.masked_fill(~mask[...,None], 0.).sum(1))
    learn = learner('bert', head=Mine(32, 3))
    path = learn.to_hf(tmp_path/'o')
    with pytest.raises(ValueError, match='is a Mine, a module of your own'): from_hf(path)
    assert gap(from_hf(path, device='cpu', head=Mine(32, 3)).scores(odd), wanted(learn, odd))<1e-5
    with pytest.raises(RuntimeError, match='size mismatch'): from_hf(path, head=Mine(32, 4))


@pytest.mark.parametrize('kind', ['single','multi','pairs','regression'])
def test_a_data_block(tmp_path, kind):
    o,cols = frame(kind)
    block,read = dict(single=(CategoryBlock,ColReader('label')), pairs=(CategoryBlock,lambda r: r['label']), multi=(MultiCategoryBlock,ColReader('label', label_delim=';')),
                      regression=(RegressionBlock,ColReader('label')))[kind]
    dls = DataBlock(blocks=(HFTextBlock(tiny_tok('bert'), max_len=50), block), get_x=ColReader(cols), get_y=read, splitter=ColSplitter()).dataloaders(o, bs=16, device='cpu')
    learn = quiet(classifier_learner(dls, tiny_arch('bert')))
    loud(learn.model)
    p = from_hf(learn.to_hf(tmp_path/'o'), device='cpu')
    assert (p.task.name,p.tok.max_len)==('single' if kind=='pairs' else kind, 50) and p.labels==(['target'] if kind=='regression' else list(dls.vocab))
    some = pairs[:5] if kind=='pairs' else texts[:5]
    assert gap(p.scores(some), torch.stack([torch.atleast_1d(learn.predict(t)[2]) for t in some]))<1e-5

# ---- Hugging Face's own head

def test_transformers_opens_the_whole(bundle):
    learn,kind,head,path = bundle
    if head!='hf' or learn.model.config.model_type=='qwen2': return # AutoTokenizer knows better than the file what a Qwen2 tokenizer is
    o = items(kind)[:7]
    hf,info = AutoModelForSequenceClassification.from_pretrained(path, output_loading_info=True)
    assert not any(info[k] for k in ('missing_keys','unexpected_keys','mismatched_keys'))
    pipe = pipeline('text-classification', str(path), device='cpu')
    got = pipe([dict(text=a, text_pair=b) for a,b in o] if kind=='pairs' else o, top_k=None)
    names = [str(v) for v in learn.dls.vocab] if kind!='regression' else ['label']
    table = torch.tensor([[next(s['score'] for s in r if s['label']==n) for n in names] for r in got])
    assert gap(table, wanted(learn, o).view(len(o),-1))<1e-5

def test_the_body_is_a_checkpoint(bundle):
    learn,kind,head,path = bundle
    if head=='hf': return
    hf,info = AutoModel.from_pretrained(path, output_loading_info=True)
    assert not info['unexpected_keys'] and all('pooler' in k for k in info['missing_keys'])
    assert 'id2label' not in json.loads((path/'config.json').read_text())                        # `pipeline` does not answer in the user's words from a random head

@pytest.fixture(scope='module', params=decoders+['bert','roberta','xlnet'])
def own_head(request):
    torch.manual_seed(0)
    return request.param, loud(hf_classifier(tiny_arch(request.param), tasks['single'](['a','b','c'])), by=4.)

@torch.no_grad()
def test_padding_moves_no_prediction_of_a_decoder(own_head):
    family,model = own_head
    tok = tokenizer(family)
    rows = [tok(t) for t in texts[:6]+['', 'one']]
    want = torch.cat([model(o[None]) for o in rows])
    n = max(map(len, rows))+3
    for left in ([True,False] if family in decoders else [tok.left]):
        x = torch.stack([torch.cat([pad,o] if left else [o,pad]) for o in (r.as_subclass(Tensor) for r in rows) for pad in [torch.full((n-len(o),), int(tok.pad))]])
        assert gap(model(x), want)<1e-5, left


def test_layer_groups_of_hugging_faces_classifier(own_head):
    family,model = own_head
    groups = layer_groups(model)
    assert len(groups)==5 and len({id(p) for g in groups for p in g})==len(list(model.parameters()))==sum(map(len, groups))
    outside = {id(p) for n,p in model.hf.named_parameters() if not n.startswith(model.hf.base_model_prefix+'.')}
    assert outside and outside<={id(p) for p in groups[-1]}

def test_hugging_faces_head_trains_and_freezes(tmp_path):
    learn = learner('gpt2', head='hf')
    assert isinstance(learn.model, HFClassifier)
    before = [p.detach().clone() for g in layer_groups(learn.model)[:-1] for p in g]
    head = learn.model.hf.score.weight.detach().clone()
    learn.freeze_to(-1); learn.fit_one_cycle(1, 1e-2)
    assert all(torch.equal(a, b) for a,b in zip(before, (p for g in layer_groups(learn.model)[:-1] for p in g))) and not torch.equal(head, learn.model.hf.score.weight)
    other = learner('gpt2', head='hf').load_encoder(learn.save_encoder(tmp_path/'o'))
    assert torch.equal(other.model.body.wte.weight, learn.model.body.wte.weight) and torch.equal(other.model.hf.score.weight, head)

def test_a_head_for_other_labels_starts_anew(tmp_path, caplog):
    path = learner('bert', head='hf').to_hf(tmp_path/'o')
    weight = AutoModelForSequenceClassification.from_pretrained(path).classifier.weight
    def head(labels): return hf_classifier(path, tasks['single'](labels)).hf.classifier.weight
    assert torch.equal(head(['negative','neutral','positive']), weight)
    assert not torch.equal(head(['x','y','z']), weight) and 'for other labels' in caplog.text
    assert head(['x','y']).shape[0]==2


def test_a_plain_checkpoint_opens(tmp_path):
    cfg = tiny_arch('roberta', num_labels=2, id2label={0:'no',1:'yes'}, label2id={'no':0,'yes':1})
    hf = loud(AutoModelForSequenceClassification.from_config(cfg))
    hf.save_pretrained(tmp_path); tiny_tok('roberta').save_pretrained(tmp_path)
    tok = AutoTokenizer.from_pretrained(tmp_path)
    got = from_hf(tmp_path, device='cpu')(texts[:5], top_k=None)
    for t,r in zip(texts, got):
        with torch.no_grad(): want = hf(**tok(t, return_tensors='pt')).logits.softmax(-1)[0]
        assert abs(next(o['score'] for o in r if o['label']=='yes')-want[1].item())<1e-5

# ---- what comes in, what goes out

@pytest.fixture(scope='module')
def clf(tmp_path_factory): return from_hf(learner('bert').to_hf(tmp_path_factory.mktemp('clf')/'o'), device='cpu')

def test_shapes_of_answers(clf):
    assert clf([])==[] and len(clf('one text'))==1 and isinstance(clf('one text')[0], dict)
    full = clf(texts[:3], top_k=None)
    assert [len(o) for o in full]==[3]*3 and all(o==sorted(o, key=lambda r: -r['score']) for o in full) and [o[0] for o in full]==clf(texts[:3])
    assert [o[:2] for o in full]==clf(texts[:3], top_k=2) and clf(texts[:3], top_k=99)==full
    for o in (tuple(texts), np.array(texts, dtype=object), df.text): assert len(clf(o))==len(texts)

def test_many_texts_show_a_bar(clf, monkeypatch, capsys):
    monkeypatch.setattr(clf, 'chunk', 10, raising=False)
    for n,shown in ((20,False), (21,True)):
        assert len(clf(['A fine film.']*n))==n
        assert ('100%' in capsys.readouterr().err)==shown

def test_a_generator_is_read_chunk_by_chunk(clf, monkeypatch):
    monkeypatch.setattr(clf, 'chunk', 10, raising=False)
    read = []
    def source():
        for i,t in enumerate(texts*3): read.append(i); yield t
    out = clf(source())
    assert not read
    first = next(out)
    assert len(read)==10
    rest = [first, *out]
    assert len(rest)==len(texts)*3 and [r['label'] for r in rest]==[r['label'] for r in clf(texts)]*3


def test_scores_are_plain_tensors(clf):
    s = clf.scores(texts[:2])
    s += 1 # a tensor of inference mode would refuse
    assert clf.scores([]).shape==(0,3) and clf.scores('one text').shape==(1,3) and not s.requires_grad

def test_what_is_no_list_of_texts(clf):
    for o in (df, {'text':'a'}, b'abc', None, 3):
        with pytest.raises(TypeError, match='expected a text'): clf(o)

def test_pairs_are_asked_for_pairs(tmp_path):
    p = from_hf(learner('bert', 'pairs').to_hf(tmp_path/'o'), device='cpu')
    assert len(p(pairs[:3]))==3 and p(pairs[0])==p([pairs[0]])
    with pytest.raises(TypeError, match='trained on pairs'): p(list(pairs[0]))
    for o in ((None,'b'), ('a',float('nan'))):
        with pytest.raises(TypeError, match='expected texts, got .* at position 1; drop missing texts'): p([pairs[0], o])

# ---- without fastai, without pickle

@pytest.fixture
def opened_elsewhere(without_fastai): return lambda path, text: json.loads(without_fastai(asked(path, text)))

def asked(path, text):
    "Code that prints the answers to `text`, and the libraries that were imported"
    return f"""import sys, json
from fastformers.inference.predictor import from_hf
answers = from_hf({str(path)!r}, device='cpu')({text!r})
print(json.dumps([answers, sorted({{o.split('.')[0] for o in sys.modules}} & {{'fastai','pandas','matplotlib'}})]))"""

def test_no_fastai_is_loaded(bundle, opened_elsewhere):
    learn,kind,head,path = bundle
    if (kind,head) not in (('single',None),('single','hf')) or learn.model.config.model_type!='bert': return
    answers,modules = opened_elsewhere(path, 'a fine film')
    assert answers[0]['label']==from_hf(path, device='cpu')('a fine film')[0]['label'] and not modules

def test_a_tagger_is_opened_without_fastai(tmp_path, opened_elsewhere):
    learn = quiet(classifier_learner(classifier_dls(tiny_tags(), tiny_tok('bert'), device='cpu'), tiny_arch('bert')))
    loud(learn.model)
    text = 'Anna Berg lives in Oslo.'
    answers,modules = opened_elsewhere(learn.to_hf(tmp_path/'o'), text)
    assert not modules and answers[0] and all(o['text']==text[o['start']:o['end']] for o in answers[0])

def test_files_of_a_bundle(bundle):
    learn,kind,head,path = bundle
    assert {o.suffix for o in path.iterdir()}<={'.json','.safetensors','.md','.jinja','.model','.txt'}
    facts,card = json.loads((path/'classifier.json').read_text()),(path/'README.md').read_text()
    assert facts['max_len']==100 and facts['truncation']=='head_tail' and facts['format']==1
    assert 'from_hf' in card and ('library_name: transformers' in card)==(head=='hf') and '/tmp' not in card and 'License' in card and '100 tokens' in card

def test_every_directory_of_a_training_has_a_model_card(tmp_path):
    learn,lm = learner('bert'),lm_learner(lm_dls(df, tiny_tok('bert'), bs=8, seq_len=32, device='cpu'), tiny_arch('bert'))
    arch = lm.save_encoder(tmp_path/'lm')
    doors = dict(to_hf=learn.to_hf, save_encoder=learn.save_encoder, changed=from_hf(learn.to_hf(tmp_path/'first')).rename_class(learn.dls.vocab[0], 'another name').save,
                 stage=lambda at: fine_tune_classifier(df, arch, at, epochs=0).path)
    for name,write in doors.items():
        card = (write(tmp_path/name)/'README.md').read_text()
        labels = read_stage(tmp_path/name)['labels']
        assert f"{', '.join(f'`{o}`' for o in labels)}" in card and 'from_hf' in card and 'License' in card, name
    assert 'accuracy' in (tmp_path/'stage/README.md').read_text()
    for at in (arch, fine_tune_lm(df, arch, tmp_path/'target', epochs=.1, bs=8, seq_len=32).path):
        assert 'BertForMaskedLM.from_pretrained' in (at/'README.md').read_text()

# ---- directories that are something else

def test_a_damaged_file_names_the_directory(tmp_path):
    from fastformers.inference.baseline import TextBaseline
    path = TextBaseline.fit(['one','two'], ['a','b']).save(tmp_path/'words')
    (path/'baseline.safetensors').write_bytes(b'cut')
    with pytest.raises(OSError, match='words/baseline.safetensors is not whole'): from_hf(path)

def test_a_damaged_config_names_the_directory(tmp_path):
    path = learner('bert').to_hf(tmp_path/'a')
    facts = json.loads((path/'config.json').read_text())
    (path/'config.json').write_text(json.dumps(facts|{'num_attention_heads':7}))
    with pytest.raises(ValueError, match='multiple') as e: from_hf(path)
    assert e.value.__notes__==[f'On opening {path}.']

def test_what_is_no_classifier(tmp_path):
    obj = objective('bert')
    lm = lm_learner(lm_dls(df.iloc[:16], obj.tfm, obj, device='cpu'), tiny_arch('bert'))
    path = lm.to_hf(tmp_path/'lm')
    assert 'AutoModelForMaskedLM'[9:] in (path/'README.md').read_text() and (path/'stage.json').is_file()
    body = from_hf(path, device='cpu')
    for ask in (lambda: body('a text'), lambda: body.labels, lambda: body.scores(odd)):
        with pytest.raises(ValueError, match='vectors but no labels.*no classifier.json.*fastformers classify.*fine_tune_classifier'): ask()
    with torch.no_grad(): want = torch.stack([lm.model.eval().body(**lm.model.model_inputs(body.tok(o)[None]))[0][0].mean(0) for o in odd])
    assert gap(body.vectors(odd), torch.nn.functional.normalize(want))<1e-5
    with pytest.raises(FileNotFoundError, match='not a directory'): from_hf(tmp_path/'nothing')
    (tmp_path/'empty').mkdir()
    with pytest.raises(OSError, match='No config'): from_hf(tmp_path/'empty')

# ---- fastai's own export

@pytest.mark.parametrize('family,head', [('bert',None), ('gpt2','hf')])
def test_export_of_a_classifier(tmp_path, caplog, family, head):
    learn = learner(family, head=head)
    want = learn.predict('a raw text')
    learn.export(tmp_path/'o.pkl')
    again = load_learner(tmp_path/'o.pkl')
    got = again.predict('a raw text')
    assert got[0]==want[0] and gap(got[2], want[2])<1e-6
    assert gap(from_hf(again.to_hf(tmp_path/'o'), device='cpu').scores(odd), wanted(learn, odd))<1e-5


# ---- words that were added

def extended(style, n=40, special=()):
    tok = tiny_tok(style)
    tok.add_tokens([f'newword{i}' for i in range(n)])
    if special: tok.add_special_tokens(dict(special))
    return tok

@pytest.fixture(scope='module')
def old(tmp_path_factory):
    "A language model as large as its tokenizer, in a directory"
    obj = objective('bert')
    learn = lm_learner(lm_dls(df.iloc[:16], obj.tfm, obj, device='cpu'), tiny_arch('bert', vocab_size=len(obj.tok)))
    return learn, learn.save_encoder(tmp_path_factory.mktemp('old')/'lm')

def test_added_tokens_get_embeddings(old, caplog, tmp_path):
    learn,path = old
    tok,n = extended('bert'),len(tiny_tok('bert'))
    more = df.assign(text='newword3 '+df.text)
    lm = quiet(lm_learner(lm_dls(more.iloc[:16], tok, device='cpu'), path))
    assert '40 new rows' in caplog.text
    for o in (lm.model.hf.get_input_embeddings(), lm.model.hf.get_output_embeddings()): assert o.weight.shape[0]==n+40
    assert torch.equal(lm.model.body.embeddings.word_embeddings.weight[:n], learn.model.body.embeddings.word_embeddings.weight)
    lm.fit(1)
    lm.save_encoder(tmp_path/'more')
    clf = quiet(classifier_learner(classifier_dls(more, tok, device='cpu'), tmp_path/'more')) # no further row
    assert clf.model.body.embeddings.word_embeddings.weight.shape[0]==n+40
    for head in (None,'hf'):
        clf = quiet(classifier_learner(classifier_dls(more, tok, device='cpu'), path, head=head)) # straight from the old one
        assert clf.model.body.embeddings.word_embeddings.weight.shape[0]==n+40
        clf.fit(1)
        assert gap(from_hf(clf.to_hf(tmp_path/'clf'), device='cpu').scores(odd), wanted(clf, odd))<1e-5


def begin(tok, arch, **kwargs): return classifier_learner(classifier_dls(df, tok, device='cpu'), arch, **kwargs)


@pytest.mark.parametrize('family', [*rich, 't5', 'xlm', 'roformer'])
def test_a_checkpoint_without_a_tokenizer_takes_any(family, caplog, tmp_path):
    "Of no files transformers makes an empty tokenizer, or asks for a package"
    load_body(tiny_arch(family))[0].save_pretrained(tmp_path)
    learn = begin(tiny_tok(family), tmp_path)
    assert learn.model.loaded.loaded>10 and 'other words' not in caplog.text
    if family=='bert': learn.load_encoder(tmp_path)
    small = tmp_path/'small'
    load_body(tiny_arch(family, vocab_size=50))[0].save_pretrained(small)
    with pytest.raises(ValueError, match='do not belong together'): begin(tiny_tok(family), small)

def test_a_padding_token_may_be_added(tmp_path):
    obj = objective('gpt2')
    path = lm_learner(lm_dls(df.iloc[:16], obj.tfm, obj, device='cpu'), tiny_arch('gpt2', vocab_size=len(obj.tok))).save_encoder(tmp_path/'lm')
    tok = extended('gpt2', 0, {'pad_token':'[PAD]'})
    learn = quiet(classifier_learner(classifier_dls(df, tok, device='cpu'), path, head='hf'))
    learn.fit(1)
    assert gap(from_hf(learn.to_hf(tmp_path/'clf'), device='cpu').scores(odd), wanted(learn, odd))<1e-5

# ---- verbs of language models


# ---- what a directory must not lose, or pretend to be

@pytest.mark.parametrize('kw', [dict(pool='concat'), dict(pool='concat', at='last'), dict(norm=None), dict(lin_ftrs=(), ps=(.1,), norm=None),
                                dict(norm=torch.nn.BatchNorm1d)], ids=['concat','concat last','no norm','no hidden layer','batch norm'])
def test_a_head_that_is_ours_is_rebuilt(tmp_path, kw):
    learn = learner('bert', head=PoolingHead(32, 3, **kw))
    assert gap(from_hf(learn.to_hf(tmp_path/'o'), device='cpu').scores(odd), wanted(learn, odd))<1e-5

@pytest.mark.parametrize('head', [None,'hf'])
def test_the_threshold_of_the_loss_is_kept(tmp_path, head):
    texts_ = texts[:12]
    learn = learner('bert', 'multi', head=head, loss_func=BCEWithLogitsLossFlat(thresh=.01))
    p = from_hf(learn.to_hf(tmp_path/'o'), device='cpu')
    assert [sorted(o['label']) for o in p(texts_)]==[sorted(learn.predict(o)[0]) for o in texts_] and p(texts_)!=p(texts_, threshold=.9)

def test_single_texts_are_asked_for_single_texts(clf):
    for o in ([['a','b']], [('a','b'), ('c','d')], iter(['a', ('a','b')])):
        with pytest.raises(TypeError, match='trained on single texts'): list(clf(o))


def test_without_a_limit_nothing_is_cut(tmp_path):
    tok = tiny_tok('t5'); tok.model_max_length = 20
    long = 'a long story '*20
    learn = quiet(classifier_learner(classifier_dls(df, HFTokenizer(tok), device='cpu'), tiny_arch('t5')))
    loud(learn.model)
    p = from_hf(learn.to_hf(tmp_path/'o'), device='cpu')
    assert p.tok.max_len is None and gap(p.scores([long]), wanted(learn, [long]))<1e-5
    hf = AutoModelForSequenceClassification.from_config(tiny_arch('bert'))
    hf.save_pretrained(tmp_path/'hf'); tok = tiny_tok('bert'); tok.model_max_length = 20; tok.save_pretrained(tmp_path/'hf')
    assert from_hf(tmp_path/'hf').tok.max_len==20, "a plain checkpoint's tokenizer says what its model takes"

# ---- which head goes on, and what came before


@pytest.mark.parametrize('head', [None,'hf'])
def test_a_head_that_is_kept_is_said_and_can_be_left(tmp_path, head, caplog):
    learn = learner('bert', head=head)
    path = learn.to_hf(tmp_path/'o')
    caplog.clear()
    kept = classifier_learner(learn.dls, path, head=head)
    assert [r.levelno for r in caplog.records if 'is kept' in r.message]==[logging.WARNING] and gap(wanted(kept, odd), wanted(learn, odd))<1e-6
    caplog.clear()
    new = classifier_learner(learn.dls, path, pretrained=False, head=head).load_encoder(path)
    assert 'is kept' not in caplog.text and gap(wanted(new, odd), wanted(learn, odd))>1e-3
    assert torch.equal(new.model.body.embeddings.word_embeddings.weight, learn.model.body.embeddings.word_embeddings.weight)

def lineage(path):
    "The stages behind the one in `path`"
    o,res = read_stage(path),[]
    while isinstance(o.get('parent'), dict): o = o['parent']; res.append(o['stage'])
    return res+[o['parent']]

def test_the_parent_is_what_was_opened(tmp_path):
    path = learner('bert').to_hf(tmp_path/'o')
    learn = quiet(classifier_learner(learner('bert').dls, path))
    for _ in range(3): learn.to_hf(path); assert lineage(path)==['classifier','bert']


def test_a_learner_without_data_names_none(tmp_path):
    learn = learner('bert')
    learn.export(tmp_path/'o.pkl')
    assert 'data' in read_stage(learn.to_hf(tmp_path/'a'))
    o = read_stage(load_learner(tmp_path/'o.pkl').to_hf(tmp_path/'b'))
    assert 'data' not in o and o['parent']=='bert'


def test_a_trained_hugging_face_head_is_not_left_without_a_word(tmp_path, caplog):
    learn = learner('bert', head='hf')
    path = learn.save_encoder(tmp_path/'hf')
    classifier_learner(learn.dls, path); assert 'a new one is made' in caplog.text

@pytest.mark.parametrize('kind', ['single','multi','regression'])
def test_hugging_faces_head_trains_in_half_precision(kind):
    learn = learner('bert', kind, head='hf', dtype=torch.bfloat16)
    learn.fit(1); assert all(o==o for o in learn.recorder.values[-1])

# ---- several as one

@pytest.mark.parametrize('kind', ['single','multi','regression','pairs','integers'])
def test_an_ensemble_is_the_mean_of_its_members(kind, tmp_path):
    "Bodies, tokenizers and heads may differ"
    learns = [learner(f, kind, head=h) for f,h in (('bert',None), ('gpt2',None), ('roberta','hf'))]
    paths,o = [l.to_hf(tmp_path/str(i)) for i,l in enumerate(learns)],items(kind)
    p = Ensemble(paths, device='cpu')
    want = torch.stack([wanted(l, o) for l in learns]).mean(0)
    assert gap(p.scores(o), want)<1e-5 and gap(p.scores(iter(o), bs=2), want)<1e-5
    got = p(o, top_k=None)
    assert list(p(iter(o), top_k=None))==got and len(got)==len(o)
    if kind in ('single','integers','pairs'): assert [r['label'] for r in p(o)]==[p.labels[i] for i in want.argmax(1)]
    if kind=='multi': assert [set(r['label']) for r in p(o, threshold=.4)]==[{v for v,s in zip(p.labels, w) if s>.4} for w in want.tolist()]
    assert p([])==[] and p.scores([]).shape==(0,len(p.labels)) and repr(p).startswith('Ensemble of 3: Predictor(')
    with pytest.raises(TypeError, match='(?i)expected text|trained on'): p([None])

def test_members_of_an_ensemble_must_predict_the_same(tmp_path):
    path = learner('bert').to_hf(tmp_path/'clf')
    plain = learner('bert', head='hf').to_hf(tmp_path/'hf')
    (plain/'classifier.json').unlink()                                        # as from elsewhere: nobody knows whether it reads pairs
    assert gap(Ensemble([path, path], 'cpu').scores(odd), from_hf(path, 'cpu').scores(odd))<1e-6
    for other in ('multi','regression','integers'):
        with pytest.raises(ValueError, match='the members of an ensemble predict the same'): Ensemble([path, learner('bert', other).to_hf(tmp_path/'other')], 'cpu')
    p = from_hf(path, device='cpu')
    with pytest.raises(FileNotFoundError, match='no/such/place.*not a directory'): Ensemble([p, 'no/such/place'], 'cpu')
    assert gap(Ensemble([p, path, p], 'cpu').scores(odd), p.scores(odd))<1e-6




# ---- tables, and other processes

def test_a_table_gets_columns(tmp_path):
    path = learner('bert').to_hf(tmp_path/'o')
    p,o = from_hf(path, 'cpu'),df[['text','label']].set_axis([0]*len(df))               # an index of one value
    got = p.predict_frame(o, top_k=2)
    assert list(got)==['text','label','predicted_label','predicted_score','predicted_label_2','predicted_score_2'] and got.index.equals(o.index)
    assert got.predicted_label.tolist()==[a['label'] for a in p(o.text.tolist())] and got.predicted_score.dtype==float
    two = from_hf(learner('bert', 'pairs').to_hf(tmp_path/'two'), 'cpu')
    rows = tiny_pairs()
    assert two.predict_frame(rows, ['text_a','text_b']).predicted_label.tolist()==[a['label'] for a in two([*zip(rows.text_a, rows.text_b)])]
    with pytest.raises(ValueError, match='did you mean text'): p.predict_frame(o, 'txt')

def test_a_predictor_goes_to_another_process_as_its_path(tmp_path, monkeypatch):
    path = learner('bert').to_hf(tmp_path/'o')
    monkeypatch.chdir(tmp_path)
    p = from_hf('o', device='cpu')
    data = pickle.dumps(p)
    assert len(data)<1000
    monkeypatch.chdir('/')
    assert torch.equal(pickle.loads(data).scores(texts), p.scores(texts))
    assert torch.equal(pickle.loads(pickle.dumps(Ensemble([p, p]))).scores(texts), p.scores(texts))
