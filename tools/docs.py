"""Build the documentation site from the notebooks, without Quarto: `python tools/docs.py` writes `_docs/`

nbdev processes each notebook; its cells and saved outputs become Markdown pages here, and MkDocs makes the site. No notebook is executed: `show_doc`
looks its symbols up in the exported module, so one process does all pages in little more than the time of one import."""
import argparse, ast, base64, html, importlib, inspect, json, logging, os, re, shutil, sys, tempfile, typing, warnings
from functools import partial
from pathlib import Path, PurePosixPath
from fastcore.docments import MarkdownRenderer
from nbdev.config import get_config, nbpath2html
from nbdev.doclinks import NbdevLookup, nbglob
from nbdev.process import NBProcessor
from nbdev.processors import FilterDefaults
from nbdev.showdoc import show_doc
from readme import directives, fence

root = Path(__file__).resolve().parent.parent
rooms = dict(text='Text and tokens', models='Networks and heads', objectives='What a language model predicts', tasks='What a label means', inference='Predict without fastai',
    data='DataLoaders', callback='During training', learner='Learners', interpret='What it has learnt', ulmfit='The three stages', compare='Which way is best', label='What to label', commands='On the command line',
    papers='Published methods', lens='For researchers')                                                                      # folders of modules, in the order of imports, and their names in the menu
others = {'fastformers/SKILL.md':'skill.md', 'benchmarks/README.md':'results.md', 'CHANGELOG.md':'changelog.md', 'CONTRIBUTING.md':'contributing.md'} # pages that are no notebooks
kinds = {'note':'note', 'tip':'tip', 'warning':'warning', 'important':'info', 'caution':'danger'}    # Quarto's callouts, as MkDocs calls them

boosts = dict(how_do_i=3, tutorials=2, log=.5)    # pages and folders whose answers come first, or last, in the search

# Notebook -> cells

def module_of(nb):
    "The module that `nb` exports, or None"
    name = next((c.directives_['default_exp'] for c in nb.cells if 'default_exp' in c.directives_), None)
    return name and f'{get_config().lib_path.name}.{name}'

class Doc(MarkdownRenderer):
    "What `show_doc` shows: a heading that is an anchor, a link to the page with the source, signature and docstring"
    def __init__(self, sym, *args, **kwargs):
        fields = inspect.isclass(sym) and any(o.__module__.startswith('transformers.') for o in sym.__mro__)
        if fields: # their types are strings that name `typing`
            for k in typing.__all__: vars(sys.modules[sym.__module__]).setdefault(k, getattr(typing, k))
        super().__init__(sym, *args, **kwargs)
        lib = get_config().lib_path.name
        made = fields and 'def __init__' not in inspect.getsource(sym)
        if made or inspect.isclass(sym) and not vars(sym).keys()&{'__init__','__new__'} and not str(getattr(sym.__init__, '__module__', '')).startswith(lib):
            self.dm = f'class {self.nm}({", ".join(o.__name__ for o in sym.__bases__)})'             # not the arguments of a base that is not ours
        try: file,(src,self.line) = Path(inspect.getsourcefile(inspect.unwrap(self.sym))), inspect.getsourcelines(self.sym) # the latter unwraps
        except (TypeError, OSError): file,src,self.line = None,[],0
        ours = file and file.is_relative_to(get_config().lib_path)
        self.file,self.end = file.relative_to(get_config().lib_path).with_suffix('').as_posix() if ours else None, self.line+len(src)
    def _repr_markdown_(self):
        name,at = self.nm.replace('__', r'\_\_'), self.nm.lower().replace('__', '')       # `__repr__` would be bold
        head = f'{"#"*self.title_level} {name} {{#{at} .symbol}}'
        source = f'[source](source/{self.file}.md#__codelineno-0-{self.line}){{.source}}' if self.file else ''
        return '\n\n'.join([head, source, super()._repr_markdown_(), *(o._repr_markdown_() for o in self.methods())])
    def methods(self):
        "Methods with a docstring that stand in the class itself"
        if not inspect.isclass(self.sym) or not self.file: return
        for n,f in vars(self.sym).items():
            f = f.fget if isinstance(f, property) else getattr(f, '__func__', f)
            if not inspect.isfunction(f) or not f.__doc__ or (n[0]=='_' and n!='__call__'): continue
            o = Doc(f, name=f'{self.nm}.{n}', title_level=self.title_level+1)
            if o.file==self.file and self.line<o.line<self.end: yield o

class show_docs:
    "nbdev processor: `show_doc` cells get their output from the exported module, where nbdev's own would execute the notebook"
    def __init__(self, nb): self.nb,self.shown = nb,{}
    def begin(self):
        mod = self.nb.module_ = module_of(self.nb)
        self.ns = {**(vars(importlib.import_module(mod)) if mod else {}), 'show_doc':partial(show_doc, renderer=Doc)}
    def __call__(self, cell):
        calls = re.findall(r'^show_doc\(.*\)$', cell.source, re.M) if cell.cell_type=='code' else []
        if not calls: return
        docs = [o for c in calls if (o := eval(c, self.ns))]
        cell['outputs'] = [dict(output_type='display_data', data={'text/markdown':o._repr_markdown_()}) for o in docs]
        cell.line_ = min((o.line for o in docs), default=0)
    def end(self):
        "Within a run of `show_doc` cells, the order of the source"
        cells,i = self.nb.cells,0
        while i<len(cells):
            j = i
            while j<len(cells) and hasattr(cells[j], 'line_'): j += 1
            cells[i:j] = sorted(cells[i:j], key=lambda o: o.line_)
            i = j+1

def fold_export(cell):
    "nbdev processor: exported code is told by `show_doc`; what that does not tell (constants, private helpers, dispatched methods) is folded"
    if cell.cell_type!='code' or not cell.directives_.keys()&{'export','exporti','hide','default_exp'}: return
    nodes = [o for o in cell.parsed_() or [] if not isinstance(o, (ast.Import, ast.ImportFrom))]
    told = any(isinstance(o, (ast.FunctionDef, ast.ClassDef)) and o.name[0]!='_' and 'dispatch' not in map(ast.unparse, o.decorator_list) for o in nodes)
    if not nodes or told or 'hide' in cell.directives_: del(cell['source'])
    else: cell['source'],cell['outputs'] = f'#| code-fold: true\n#| code-summary: Source\n{cell.source}', []

class Procs(FilterDefaults):
    "nbdev's processors for docs, without those that execute notebooks or link to a host"
    def base_procs(self):
        ours = {'exec_show_docs':show_docs, 'rm_export':fold_export, 'add_links':None, 'insert_warning':None}
        return [o for p in super().base_procs() if (o := ours.get(p.__name__, p))]

# Cells -> Markdown

def indent(s): return re.sub('^(?=.)', '    ', s, flags=re.M)

def callout(m):
    "A block `:::{...}` of Quarto as an admonition; a block of another kind loses its marks"
    attrs,body = m[2],m[3].strip('\n')
    kind = re.search(r'callout-(\w+)', attrs)
    if not kind: return body+'\n'
    head = re.match(r'\s*#+ +(.*)\n', body)
    title = head[1] if head else (re.search(r'title="([^"]*)"', attrs) or ['', kind[1].capitalize()])[1]
    mark = '!!!' if 'collapse' not in attrs else '???' if 'collapse="true"' in attrs else '???+'
    return f'{mark} {kinds.get(kind[1], "note")} "{title}"\n\n{indent(body[head.end():].lstrip(chr(10)) if head else body)}\n'

def callouts(s): return re.sub(r'^(:{3,}) *(\{[^}\n]*\}|[\w-]+) *\n(.*?)^\1 *$', callout, s, flags=re.M|re.S)

def one_line(s):
    "HTML without line ends, so that Markdown takes it as one block"
    s = re.sub(r'<[^>]*>', lambda m: re.sub(r'\s*\n\s*', ' ', m[0]), s.strip())
    return s.replace('\n', '&#10;') if '<pre' in s else re.sub(r'\s*\n\s*', ' ', s)

def box(s): return f'<div class="out">{one_line(s)}</div>'
def pre(s): return box('<pre><code>' + html.escape(re.sub(r'\x1b\[[0-9;]*m', '', s).strip('\n')) + '</code></pre>')

def slug(s): return re.sub(r'\W+', '-', s.lower()).strip('-')

def lead(s): return s and f'<p class="lead" markdown>{s}</p>'

def host(): return '{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}'.format(**os.environ) if 'GITHUB_REPOSITORY' in os.environ else None

def where(path):
    "Links to the notebook at `path` where it is edited and where it runs, if the site is built for a repository that others can reach"
    if not host(): return
    at = f'blob/{get_config().branch}/{os.path.relpath(path, root)}'
    colab = f"[open in Colab](https://colab.research.google.com/github/{os.environ['GITHUB_REPOSITORY']}/{at})"
    return f"<p class=\"where\" markdown>[edit this notebook]({host()}/{at}) · {colab}, after `!pip install 'fastformers[minilm] @ git+{host()}'`</p>"

class Page:
    "The notebook at `path`, below the folder `nbs`, as Markdown `md`, with its pictures in `files`"
    def __init__(self, path, nbs=None):
        self.path,self.folder,self.files,self.parts = path,os.path.relpath(path.parent, root),{},[]         # nbs/text
        self.name = (PurePosixPath(os.path.relpath(path.parent, nbs or get_config().nbs_path))/nbpath2html(path).stem).as_posix()      # text/tokenizer
        proc = NBProcessor(path, procs=Procs().procs(), rm_directives='quarto')
        proc.process()
        self.nb,self.module = proc.nb,proc.nb.module_
        front = getattr(self.nb, 'frontmatter_', {})
        self.title = self.heading = str(front.get('title') or self.name)
        self.desc = front.get('description') or ''
        boost = boosts.get(self.name, boosts.get(self.name.partition('/')[0], 1))
        self.parts = [f'---\ntitle: {json.dumps(self.title)}\nsearch:\n  boost: {boost}\n---', f'# {self.title}', lead(self.desc), where(path)]
        for c in self.nb.cells: getattr(self, c.cell_type)(c)
        self.md = '\n\n'.join(o for o in self.parts if o)+'\n'

    def raw(self, c): pass                                   # frontmatter
    def markdown(self, c):
        src = directives(c.source)[1]
        if heads := re.findall(r'^#+ +(.*)', src, re.M): self.heading = heads[-1]
        if self.name=='how_do_i': src = re.sub(r'^\| (?=(.+?\?) \|)', lambda m: f'| <span id="{slug(m[1])}"></span>', src, flags=re.M)
        self.parts.append(callouts(src))

    def code(self, c):
        d,src = directives(c.source)
        if d.get('include')=='false': return
        if src and d.get('echo')!='false' and 'hide_input' not in d:
            block = fence(src, 'python')
            if d.get('code-fold', 'false')!='false':
                block = f'???{"+" if d["code-fold"]=="show" else ""} code "{d.get("code-summary", "Code").strip(chr(34))}"\n\n{indent(block)}'
            self.parts.append(block)
        if d.get('output')!='false' and 'hide_output' not in d: self.parts += map(self.output, c.get('outputs', []))

    def output(self, o):
        if o['output_type']=='error': raise ValueError(f"{self.path} holds an error ({o['ename']}): run it again before building the docs")
        if o['output_type']=='stream': return pre(''.join(o['text'])) if o['name']=='stdout' else ''
        d = {k:''.join(v) for k,v in o['data'].items() if isinstance(v, (str,list))}
        for kind,ext in (('image/svg+xml','svg'), ('image/png','png'), ('image/jpeg','jpg')):
            if kind in d: return self.picture(d[kind].encode() if ext=='svg' else base64.b64decode(d[kind]), ext)
        if 'text/markdown' in d: return d['text/markdown'].strip()
        if 'text/html' in d: return box(re.sub(r'<style.*?</style>|<script.*?</script>', '', d['text/html'], flags=re.S))
        return pre(d['text/plain']) if 'text/plain' in d else ''

    def picture(self, data, ext):
        name = f'pictures/{self.name.replace("/", "_")}_{len(self.files)+1}.{ext}'
        self.files[name] = data
        alt = re.sub(r'[`\[\]*"<>]', '', self.heading)
        return f'![{alt}]({name}){{.picture}}'

# Links

class Links:
    "Rewrites the links of pages: notebooks and files of the project, symbols in backticks"
    not_text = re.compile(r'''^\#[^\n]*$ | ^\ *<(?:div|table)[^\n]*$                              # headings, HTML
        | ^\ *(?P<f>`{3,}|~{3,}).*?^\ *(?P=f)[`~]*$ | ``.*?``                                   # code
        | !?\[(?:[^\[\]`]|`[^`\n]*`)*\]\([^)\n]*\)                                          # links and pictures''', re.M|re.S|re.X)
    def __init__(self, pages):
        self.files,self.lookup = set(),NbdevLookup(strip_libs='fastformers fastai fastcore')
        self.pages = {f'{o.folder}/{o.path.name}':f'{o.name}.md' for o in pages} | {k:v for k,v in others.items() if (root/k).exists()}
        self.names = {v.removesuffix('.md') for v in self.pages.values()}
        self.anchors = {f'{o.name}.html#{a}' for o in pages for a in re.findall(r'\{#(\S+) \.symbol\}', o.md)}
        modules = {o.module:f'{o.name}.md' for o in pages if o.module}
        short = {k.partition('.')[2]:v for k,v in modules.items() if k.count('.')>1}         # text.core, but not all
        stems = {k.removeprefix('nbs/').removesuffix('.ipynb'):v for k,v in self.pages.items()}
        self.known = modules | short | self.pages | stems | {f'{o}/':f'{o}/index.md' for o in rooms}
        self.methods = {a.rpartition('.')[2]:a for a in self.anchors if '#learner.' in a}              # `fit_schedule` for `Learner.fit_schedule`

    def symbol(self, m):
        "`name` in backticks, linked to where it is documented; addresses begin at the root of the site"
        name = m[1]
        to = self.known.get(name) or self.lookup.doc(name) or self.methods.get(name)
        last = name.rpartition('.')[2]
        if not to or last.startswith('_') or (to.startswith('http') and last.isalpha() and last.islower()): return m[0]    # `first`, `test` are words
        if not to.startswith('http') and not to.endswith('.md'):
            page,_,at = to.strip('/').partition('#')
            at = next((o for o in (at, at.rpartition('.')[0]) if f'{page}#{o}' in self.anchors), '')
            if page.removesuffix('.html') not in self.names: return m[0]
            to = page.removesuffix('.html')+'.md'+('#'+at if at else '')
        return f'[{m[0]}]({to if to.startswith("http") else self.up+to})'

    def target(self, to, here):
        "Where the link `to`, in a file of the folder `here`, leads on the site"
        path,_,at = to.partition('#')
        if re.match(r'(source|pictures)/', path): return self.up+to
        if not path or re.match(r'[a-z]+:', path): return to
        at = '#'+at if at else ''
        rel = os.path.normpath(PurePosixPath(here)/path)
        if rel in self.pages: return self.up+self.pages[rel]+at
        if (name := rel.removeprefix('nbs/').removesuffix('.html')) in self.names and path.endswith('.html'): return f'{self.up}{name}.md{at}'
        if rel.startswith('nbs/images/'): return self.up+rel.removeprefix('nbs/')
        if not (root/rel).is_file() or rel.startswith('..'): return to
        self.files.add(rel)
        return f'{self.up}files/{rel}{at}'

    def __call__(self, md, here='nbs', page='index'):
        "`md` of `page`, which comes from the folder `here`, with links of the site; code, headings and links get no new ones"
        out,end,self.up = [],0,'../'*page.count('/')
        text = lambda s: re.sub(r'(?<!`)`([^`\s]+?)(?:\(\))?`(?!`)', self.symbol, s)
        for m in self.not_text.finditer(md):
            out += [text(md[end:m.start()]), m[0] if m['f'] else re.sub(r'(\]\()([^)\s]+)', lambda o: o[1]+self.target(o[2], here), m[0])]
            end = m.end()
        return ''.join(out)+text(md[end:])

# Site

def nav(pages):
    "Home, tutorials, modules with a section for each room, questions, notes"
    def entry(o): return {o.title:f'{o.name}.md'}
    def folder(name): return [entry(o) for o in pages if PurePosixPath(o.name).parent.as_posix()==name]
    top = [o for o in pages if o.module and '/' not in o.name]
    before = [o for o in top if o.module.rpartition('.')[2] in ('files','hub')]
    modules = [*map(entry, before), *({v:[f'{k}/index.md', *folder(k)]} for k,v in rooms.items()), *(entry(o) for o in top if o not in before)]
    notes = [entry(o) for o in pages if not o.module and '/' not in o.name and o.name not in ('index','how_do_i')]
    notes += [{PurePosixPath(v).stem.capitalize():v} for k,v in others.items() if (root/k).exists()]
    return [{'Home':'index.md'}, {'Tutorials':folder('tutorials')}, {'Modules':modules}, {'How do I ...':'how_do_i.md'}, {'Results and notes':notes}]

def room_page(room, pages):
    "The page of a folder of modules: what it is for, and what each of its modules does"
    says = ast.get_docstring(ast.parse((get_config().lib_path/room/'__init__.py').read_text('utf-8')))
    rows = [f'| [{o.module.rpartition(".")[2]}]({PurePosixPath(o.name).name}.md) | {o.desc} |' for o in pages if o.module and o.name.startswith(room+'/')]
    return '\n'.join([f'---\ntitle: {room}\n---\n\n# {room}\n\n{lead(says)}\n', '| module | |', '|---|---|', *rows])+'\n'

def public_surface(pages):
    "Text for a reader in a hurry, or a language model: each name of `fastformers.all` with its signature, each page with its line"
    def line(name, o):
        try: sig = str(inspect.signature(o))
        except (TypeError,ValueError): sig = ''
        return f"- `{name}{re.sub(r'<[^>]*>', '...', sig)}`: {(inspect.getdoc(o) or '').partition(chr(10))[0]}"
    names = importlib.import_module(f'{get_config().lib_path.name}.all')
    ours = {k:v for k in names.__all__ if callable(v := getattr(names, k))}
    return '\n'.join([f'# {pages[0].title}\n', f'> {pages[0].desc}\n', '## Names of `from fastformers.all import *`\n', *(line(k, v) for k,v in ours.items()),
                      '\n## Pages\n', *(f'- [{o.title}]({o.name}.html): {o.desc}' for o in pages)])+'\n'

def write_pages(to):
    "All pages as Markdown in the folder `to`; returns the navigation"
    def write(name, md):
        (to/name).parent.mkdir(parents=True, exist_ok=True)
        (to/name).write_text(md, 'utf-8')
    lib = get_config().lib_path
    pages = [Page(o) for o in sorted(nbglob(as_path=True))]
    links = Links(pages)
    (to/'pictures').mkdir(parents=True)
    for o in pages:
        write(f'{o.name}.md', links(o.md, o.folder, o.name))
        for k,v in o.files.items(): (to/k).write_bytes(v)
    write('llms.txt', public_surface(sorted(pages, key=lambda o: o.name!='index')))
    for o in rooms: write(f'{o}/index.md', links(room_page(o, pages), f'nbs/{o}', f'{o}/index'))
    for k,v in others.items():
        if (root/k).exists(): write(v, links((root/k).read_text('utf-8'), os.path.dirname(k)))
    for o in links.files:
        (to/'files'/o).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root/o, to/'files'/o)
    for o in lib.rglob('[!_]*.py'):
        name,code = o.relative_to(lib).as_posix(),fence(o.read_text('utf-8').rstrip(), '{.python linenums="1"}')
        write(f'source/{name.removesuffix(".py")}.md', f'---\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n# {name}\n\n{code}\n')
    if (root/'nbs/images').exists(): shutil.copytree(root/'nbs/images', to/'images')
    shutil.copytree(root/'tools/docs', to/'assets', ignore=shutil.ignore_patterns('*.yml'))
    return nav(pages)

def add_questions(out):
    """Make each question of `how_do_i` an entry of the search, with a title of its own

    A word of a title counts a thousand times as much as one of the text. In one long section of a table nobody finds "active learning"."""
    def plain(s): return html.escape(html.unescape(re.sub('<[^>]*>', '', s)), quote=False).replace('&amp;', '&')     # W&B is found as it is typed
    rows = re.findall(r'<td><span id="([^"]+)"></span>(.*?)</td>\s*<td>(.*?)</td>\s*<td>(.*?)</td>', (out/'how_do_i.html').read_text('utf-8'), re.S)
    index = json.loads((out/'search/search_index.json').read_text('utf-8'))
    index['docs'] = [o for o in index['docs'] if not o['location'].startswith('how_do_i.html#')]
    index['docs'] += [dict(location=f'how_do_i.html#{at}', title=plain(f'How do I {o}'), text=plain(f'{does} ({where})'), boost=boosts['how_do_i']) for at,o,does,where in rows]
    s = json.dumps(index, ensure_ascii=False, separators=(',',':'))
    (out/'search/search_index.json').write_text(s, 'utf-8')
    (out/'search/search_index.js').write_text(f'var __index = {s}', 'utf-8')

def build(out):
    "The site in the folder `out`"
    from mkdocs.commands import build
    from mkdocs.config import load_config
    with tempfile.TemporaryDirectory() as tmp:
        cfg = load_config(str(root/'tools/docs/mkdocs.yml'), nav=write_pages(Path(tmp)/'md'), docs_dir=f'{tmp}/md', site_dir=str(out), repo_url=host(), strict=True)
        cfg.plugins.on_startup(command='build', dirty=False)
        build.build(cfg)
        cfg.plugins.on_shutdown()
    add_questions(out)

if __name__=='__main__':
    p = argparse.ArgumentParser(description='Build the documentation site from the notebooks')
    p.add_argument('out', nargs='?', default=root/'_docs', type=Path, help='folder of the site')
    warnings.filterwarnings('ignore')
    logging.basicConfig(format='%(levelname)s: %(message)s')     # what MkDocs finds; any of it fails the build
    os.chdir(root)
    build(p.parse_args().out.resolve())
