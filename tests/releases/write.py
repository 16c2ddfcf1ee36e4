"""Write small directories of every kind, and what they answer, for later releases to open

    python tests/releases/write.py   # once for each release, into tests/releases/VERSION; commit what it writes"""
import json, warnings
from pathlib import Path
import pandas as pd, torch
warnings.filterwarnings('ignore')
from fastformers import __version__
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.inference.baseline import TextBaseline
from fastformers.inference.lm_predictor import lm_from_hf
from fastformers.inference.predictor import Ensemble, from_hf
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.models.adapters import add_adapters
from fastformers.tasks.core import SingleLabel
from fastformers.testing import tiny_arch, tiny_choice, tiny_df, tiny_pairs, tiny_spans, tiny_tags, tiny_tok

df,pairs,spans,choice = tiny_df(),tiny_pairs(),tiny_spans(),tiny_choice()
texts = [*df.text[:3], 'Ein Café [SEP] 😀', ' '.join(df.text[:5])]
two = [*zip(pairs.text_a[:3], pairs.text_b[:3])]
cases = { # name -> rows, items to answer, arguments of the data, arguments of the learner
    'single':(df, texts, {}, {}), 'pipeline':(df, texts, {}, dict(head='hf')), 'linear':(df, texts, {}, dict(head='linear')),
    'windows':(df, texts, dict(max_len=16, windows=4, overlap=4), {}),
    'multi':(df.assign(label=df.label.map(lambda o: [o, 'text'])), texts, {}, {}),
    'regression':(df.assign(label=df.text.str.len()/7), texts, {}, {}),
    'pairs':(pairs, two, dict(text_col=['text_a','text_b']), {}),
    'siamese':(pairs, two, dict(text_col=['text_a','text_b'], pairing='siamese'), {}),
    'tags':(tiny_tags(), tiny_tags().text[:3].tolist(), {}, {}),
    'spans':(spans, spans[['question','context']][:3].values.tolist(), dict(text_col=['question','context'], label_col=['answer_text','answer_start']), {}),
    'choice':(choice, choice[['text','candidates']][:3].values.tolist(), dict(text_col=['text','candidates'], task='choice'), {})}

def arch():
    res = tiny_arch('bert')
    res.update(dict(hidden_size=16, num_hidden_layers=1, intermediate_size=32, max_position_embeddings=128))
    return res

def answers(name, path, items):
    "Answer `items` with what is in the directory `path`"
    if name.startswith('lm_'): return lm_from_hf(path, device='cpu').score(items).to_dict('records')
    return from_hf(path, device='cpu')(items)

def main(root):
    asked = {}
    def keep(name, items, write):
        torch.manual_seed(0)
        write(root/name)
        asked[name] = dict(items=items, answers=json.loads(json.dumps(answers(name, root/name, items), default=float)))
    for name,(rows,items,how,head) in cases.items():
        def write(path):
            dls = classifier_dls(rows, tiny_tok('bert'), device='cpu', **how)
            classifier_learner(dls, arch(), **head).to_hf(path)
        keep(name, items, write)
    def adapted(path):
        learn = classifier_learner(classifier_dls(df, tiny_tok('bert'), device='cpu'), arch())
        add_adapters(learn.model, 8)
        learn.to_hf(path)
    keep('adapters', texts, adapted)
    keep('lm_bert', texts, lambda path: lm_learner(lm_dls(df, tiny_tok('bert'), device='cpu'), arch()).save_encoder(path))
    keep('lm_gpt2', texts, lambda path: lm_learner(lm_dls(df, tiny_tok('gpt2'), device='cpu'), tiny_arch('gpt2')).save_encoder(path))
    keep('tfidf', texts, lambda path: TextBaseline.fit(df.text.tolist(), df.label.tolist(), SingleLabel()).save(path))
    keep('ensemble', texts, lambda path: Ensemble([from_hf(root/'linear'), from_hf(root/'tfidf')]).save(path))
    for o in root.rglob('*.safetensors'): o.chmod(0o644)
    (root/'answers.json').write_text(json.dumps(asked, indent=1))

if __name__=='__main__': main(Path(__file__).parent/__version__)
