"Render `nbs/index.ipynb` as README.md, without Quarto: `python tools/readme.py`"
import base64, json, re
from pathlib import Path

root = Path(__file__).resolve().parent.parent
note = '<!-- Rendered from nbs/index.ipynb by `make readme`: edit the notebook. -->\n\n'

def directives(src):
    "Split the `#|` lines at the top of `src` from the rest: {name: value}, source"
    head = re.match(r'(?:[ \t]*#\|[^\n]*(?:\n|$)|[ \t]*\n)*', src)[0]
    return {k.strip():v.strip() for k,_,v in (o.strip()[2:].partition(':') for o in head.splitlines() if o.strip())}, src[len(head):].strip('\n')

def fence(s, lang=''):
    "`s` as a fenced block"
    ticks = '`'*max(3, 1+max(map(len, re.findall('`+', s)), default=0))
    return f'{ticks}{lang}\n{s}\n{ticks}'

def relink(s):
    "Links of a notebook in nbs/, seen from the root"
    return re.sub(r'\]\((\.\./)?(?![a-z]+:|#|/)', lambda m: '](' if m[1] else '](nbs/', s)

def output(o, pics):
    "One output as Markdown; a picture is added to `pics` and linked"
    if o['output_type']=='stream': return fence(re.sub(r'\x1b\[[0-9;]*m', '', ''.join(o['text'])).strip('\n')) if o['name']=='stdout' else ''
    if o['output_type']=='error': raise ValueError(f"index.ipynb holds an error ({o['ename']}): run it again before rendering")
    d = {k:''.join(v) for k,v in o['data'].items() if isinstance(v, (str,list))}
    if 'image/png' in d:
        name = f'nbs/images/readme_{len(pics)+1}.png'
        pics[name] = base64.b64decode(d['image/png'])
        return f'![]({name})'
    if 'text/markdown' in d: return d['text/markdown'].strip()
    if 'text/html' in d: return re.sub(r'<style.*?</style>\n?', '', d['text/html'], flags=re.S).strip()
    return fence(d['text/plain'].strip('\n')) if 'text/plain' in d else ''

def render(path):
    "The notebook at `path` as Markdown, and its pictures as {name: bytes}"
    parts,pics = [],{}
    for c in json.loads(Path(path).read_text('utf-8'))['cells']:
        d,src = directives(''.join(c['source']))
        if 'hide' in d or d.get('include')=='false': continue
        if c['cell_type']=='markdown': parts.append(relink(src))
        if c['cell_type']!='code': continue
        if src and d.get('echo')!='false' and 'hide_input' not in d and 'default_exp' not in ' '.join(d): parts.append(fence(src, 'python'))
        if d.get('output')!='false' and 'hide_output' not in d: parts += [output(o, pics) for o in c['outputs']]
    return note+'\n\n'.join(o for o in parts if o)+'\n', pics

if __name__=='__main__':
    text,pics = render(root/'nbs/index.ipynb')
    for o in (root/'nbs/images').glob('readme_*.png'): o.unlink()
    for name,png in pics.items():
        (root/name).parent.mkdir(exist_ok=True)
        (root/name).write_bytes(png)
    (root/'README.md').write_text(text, 'utf-8')
