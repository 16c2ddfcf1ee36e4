"A classifier as an ONNX graph gives the answers of the network, for each task and family, in windows and pairs too"
import logging, pytest, torch
from functools import partial
pytest.importorskip('onnxruntime'); pytest.importorskip('onnxscript')
from fastformers.data.block import classifier_dls
from fastformers.inference.onnx import to_onnx
from fastformers.inference.predictor import Ensemble, from_hf
from fastformers.learner.core import classifier_learner
from fastformers.models.heads import LinearHead
from fastformers.testing import tiny_arch, tiny_choice, tiny_df, tiny_pairs, tiny_spans, tiny_tags, tiny_tok
from test_contracts_common import loud, quiet

pytestmark = pytest.mark.exact
df = tiny_df()
columns = dict(pairs=['text_a','text_b'], siamese=['text_a','text_b'], spans=['question','context'], choice=['text','candidates'])
labels = dict(spans=['answer_text','answer_start'])

def frame(kind):
    if kind in ('pairs','siamese'): return tiny_pairs()
    if kind in ('tags','spans','choice'): return dict(tags=tiny_tags, spans=tiny_spans, choice=tiny_choice)[kind]()
    new = dict(multi=df.label.str.replace('positive', 'positive;long'), regression=df.text.str.len()/100)
    return df.assign(label=new.get(kind, df.label))

def bundle(path, family='bert', kind='single', head=None, **reads):
    torch.manual_seed(0)
    o,cols = frame(kind),columns.get(kind, 'text')
    if kind=='siamese': reads['pairing'] = 'siamese'
    task = kind if kind in ('spans','choice') else None
    dls = classifier_dls(o, tiny_tok(family), cols, labels.get(kind, 'label'), bs=16, device='cpu', task=task, **{'max_len':100, **reads})
    learn = quiet(classifier_learner(dls, tiny_arch(family, num_hidden_layers=1), head=head))
    loud(learn.model, by=4.)
    learn.model.task.temperature = 1.5 if learn.model.task.one_class else None
    inputs = o[cols].to_dict('records') if kind in ('spans','choice') else [*o[cols].itertuples(index=False, name=None)] if isinstance(cols, list) else o[cols].tolist()
    return learn.to_hf(path), inputs

def gap(a, b): return max(float((p-q).abs().max()) for p,q in zip(a, b, strict=True))

often = [('bert','multi',None), ('bert','tags',None), ('bert','siamese',None), ('roberta','pairs','hf')]
rare = [(f,'single',None) for f in 'bert gpt2 roberta distilbert albert electra modernbert deberta-v2 mpnet llama t5 fnet'.split()]
rare += [('bert',k,None) for k in ('regression','choice','pairs','spans')] + [('bert','single','hf'), ('bert','tags','hf'), ('bert','spans','hf'), ('gpt2','single','hf')]

@pytest.mark.parametrize('family,kind,head', often+[pytest.param(*o, marks=pytest.mark.slow) for o in rare])
def test_answers_are_those_of_the_network(tmp_path, family, kind, head):
    path,inputs = bundle(tmp_path/'o', family, kind, head)
    assert to_onnx(path)==path/'model.onnx' and sorted(o.name for o in path.glob('.*'))==[]
    a,b = from_hf(path, 'cpu'),from_hf(path, 'cpu', backend='onnx')
    assert gap(a.scores(inputs), b.scores(inputs))<1e-4
    strip = lambda o: [strip(v) for v in o] if isinstance(o, list) else {k:v for k,v in o.items() if k!='score'}
    assert strip(a(inputs))==strip(b(inputs))

def test_windows_int8_and_the_graph_alone(tmp_path, caplog):
    import onnxruntime
    path,inputs = bundle(tmp_path/'o', head='linear', max_len=16, windows=8)
    with caplog.at_level(logging.INFO): to_onnx(path, int8=True)
    assert {o.name.split('.')[0] for o in caplog.records if o.levelno<=logging.INFO}<={'fastformers'} # not each step of a graph
    assert (path/'model_int8.onnx').stat().st_size<(path/'model.onnx').stat().st_size
    a,b,small = (from_hf(path, 'cpu', backend=o) for o in ('torch','onnx','onnx_int8'))
    texts = [*inputs, 'a long story '*30]
    assert gap(a.scores(texts), b.scores(texts))<1e-4 and gap(a.vectors(texts), b.vectors(texts))<1e-4
    assert gap(a.scores(texts), small.scores(texts))<.2
    few = [o for o in inputs if len(a.tok(o))<=16]                                       # of one window
    x = a.tok.tok(few, padding=True, return_tensors='np')
    session = onnxruntime.InferenceSession(path/'model.onnx')
    o, = session.run(['logits'], {i.name:x[i.name].astype('int64') for i in session.get_inputs()})
    assert len(few)>5 and torch.allclose(torch.tensor(o).softmax(-1), a.scores(few), atol=1e-4)

def test_what_has_no_graph_is_refused(tmp_path):
    path,_ = bundle(tmp_path/'o')
    for k,flag in dict(onnx='', onnx_int8=', int8=True').items():
        with pytest.raises(FileNotFoundError, match=rf"does not exist; to_onnx\('.*'{flag}\) of fastformers.inference.onnx writes it"): from_hf(path, 'cpu', backend=k)
    with pytest.raises(ValueError, match="`backend` 'onx' is unknown; did you mean onnx"): from_hf(path, 'cpu', backend='onx')
    Ensemble([path, path]).save(tmp_path/'two')
    with pytest.raises(TypeError, match='only a single network'): to_onnx(tmp_path/'two')
