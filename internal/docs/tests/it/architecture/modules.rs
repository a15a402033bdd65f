//! Finds cycles between the modules of a crate.
//!
//! A module depends on the module that defines what it names: imports, paths in code and paths within
//! macros, each followed through re-exports. The children of a module, each taken with its subtree, must
//! not depend on each other in a cycle. Code under `#[cfg(test)]` is left out.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, Item, Meta, Token, UseTree};

/// The files of a crate: path from its `src` → text.
pub(super) type Files = BTreeMap<String, String>;

/// Path of a module from the root of its crate, which is empty.
type ModulePath = Vec<String>;

#[derive(Default)]
struct Module {
    /// What it defines, child modules excepted.
    items: BTreeSet<String>,
    /// Imported name → path as written.
    imports: BTreeMap<String, Vec<String>>,
    /// Paths of which everything is imported.
    globs: Vec<Vec<String>>,
    /// All paths in its code, imports included.
    paths: BTreeSet<Vec<String>>,
}

#[derive(Default)]
struct Modules(BTreeMap<ModulePath, Module>);

/// Describes each dependency that is part of a cycle: its modules, and the paths in code that make it.
pub(super) fn cycles(files: &Files) -> Vec<String> {
    let mut collector = Collector { files, path: Vec::new(), modules: Modules::default() };
    collector.visit_file_at(["lib.rs", "main.rs"].map(str::to_owned));
    let modules = collector.modules;
    // Parent → dependencies between its children, with the paths that make them.
    let mut levels: BTreeMap<&[String], Dependencies> = BTreeMap::new();
    for (path, module) in &modules.0 {
        for written in &module.paths {
            let Some(target) = modules.resolve(path, written, 0) else { continue };
            // A use of an imported name depends on nothing more than the import.
            let import = module.imports.get(&written[0]).filter(|import| *import != written);
            if import.and_then(|import| modules.resolve(path, import, 0)).as_ref() == Some(&target)
            {
                continue;
            }
            let common = path.iter().zip(&target).take_while(|(a, b)| a == b).count();
            if common < path.len() && common < target.len() {
                let children = (path[common].clone(), target[common].clone());
                let reason = format!("{} names {}", name(path), written.join("::"));
                let level = levels.entry(&path[..common]).or_default();
                level.entry(children).or_default().push(reason);
            }
        }
    }
    let mut found = Vec::new();
    for (parent, dependencies) in &levels {
        for ((from, to), reasons) in dependencies {
            if is_reached(from, to, dependencies) {
                found.push(format!("in {}, {from} → {to}: {}", name(parent), reasons.join("; ")));
            }
        }
    }
    found
}

/// Dependencies between the children of one module, each with the paths in code that make it.
type Dependencies = BTreeMap<(String, String), Vec<String>>;

fn name(path: &[String]) -> String {
    std::iter::once("crate").chain(path.iter().map(String::as_str)).collect::<Vec<_>>().join("::")
}

/// Whether the dependencies lead from a child to this one.
fn is_reached(child: &String, from: &String, dependencies: &Dependencies) -> bool {
    let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(node) = left.pop() {
        let next = dependencies.keys().filter(|(from, _)| from == node).map(|(_, to)| to);
        left.extend(next.filter(|to| seen.insert(*to)));
    }
    seen.contains(child)
}

impl Modules {
    /// The module that defines what a path names. `None` if it is of another crate, or no module's.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        let here = &self.0[from];
        match first.as_str() {
            "crate" | "$crate" => Some(self.descend(Vec::new(), rest, depth)),
            "self" => Some(self.descend(from.to_vec(), rest, depth)),
            name if name == "super" || here.items.contains(name) || self.is_child(from, name) => {
                Some(self.descend(from.to_vec(), path, depth))
            }
            // An import of its own name is of another crate: `use bytes::Bytes; Bytes::new()`.
            name => {
                let import = here.imports.get(name).filter(|import| import.as_slice() != path);
                let import = import.filter(|_| depth < 8)?;
                self.resolve(from, &[import, rest].concat(), depth + 1)
            }
        }
    }

    /// Follows a path from a module to the module that defines what it names.
    fn descend(&self, from: ModulePath, path: &[String], depth: usize) -> ModulePath {
        let Some((first, rest)) = path.split_first() else { return from };
        let module = &self.0[&from];
        if first == "super" {
            let parent = from[..from.len().saturating_sub(1)].to_vec();
            return self.descend(parent, rest, depth);
        }
        if self.is_child(&from, first) {
            return self.descend([from, vec![first.clone()]].concat(), rest, depth);
        }
        if module.items.contains(first) || depth >= 8 {
            return from;
        }
        if let Some(import) = module.imports.get(first) {
            return self.resolve(&from, &[import, rest].concat(), depth + 1).unwrap_or(from);
        }
        let through_glob = module.globs.iter().find_map(|glob| {
            let target = self.resolve(&from, glob, depth + 1)?;
            let found = self.descend(target.clone(), path, depth + 1);
            (found != target || self.0[&target].items.contains(first)).then_some(found)
        });
        through_glob.unwrap_or(from)
    }

    fn is_child(&self, parent: &[String], name: &str) -> bool {
        self.0.contains_key(&[parent, &[name.to_owned()]].concat())
    }
}

/// Collects what the modules define, import and name.
struct Collector<'a> {
    files: &'a Files,
    /// The module that is visited.
    path: ModulePath,
    modules: Modules,
}

impl Collector<'_> {
    fn module(&mut self) -> &mut Module {
        self.modules.0.entry(self.path.clone()).or_default()
    }

    /// Visits the file with one of these names.
    fn visit_file_at(&mut self, names: [String; 2]) {
        let text = names.iter().find_map(|name| self.files.get(name));
        let text = text.unwrap_or_else(|| panic!("neither of {names:?}"));
        let file = syn::parse_file(text).unwrap_or_else(|e| panic!("{names:?}: {e}"));
        // Also if the file is empty.
        self.module();
        self.visit_file(&file);
    }

    fn import(&mut self, tree: &UseTree, prefix: &[String]) {
        let with = |name: &Ident| {
            let itself = name == "self" && !prefix.is_empty();
            let own = (!itself).then(|| name.to_string());
            prefix.iter().cloned().chain(own).collect::<Vec<_>>()
        };
        match tree {
            UseTree::Path(tree) => self.import(&tree.tree, &with(&tree.ident)),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, prefix)),
            UseTree::Glob(_) => {
                self.module().paths.insert(prefix.to_vec());
                self.module().globs.push(prefix.to_vec());
            }
            UseTree::Name(tree) => {
                let path = with(&tree.ident);
                self.add_import(path.last().cloned(), path);
            }
            UseTree::Rename(tree) => {
                self.add_import(Some(tree.rename.to_string()), with(&tree.ident));
            }
        }
    }

    fn add_import(&mut self, name: Option<String>, path: Vec<String>) {
        self.module().paths.insert(path.clone());
        self.module().imports.extend(name.map(|name| (name, path)));
    }

    /// Paths within a macro, which are tokens to the parser. An empty path names nothing.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        // Colons since the last identifier: two join it to the next.
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.module().paths.insert(std::mem::take(&mut path));
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.tokens(group.stream());
                    colons = 0;
                }
                _ => colons = 0,
            }
        }
        self.module().paths.insert(path);
    }
}

impl<'ast> Visit<'ast> for Collector<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = describe(item);
        if is_test(attributes) {
            return;
        }
        if let Some(name) = name.map(Ident::to_string) {
            if attributes.iter().any(|attribute| attribute.path().is_ident("macro_export")) {
                let path =
                    [&["crate".to_owned()], &self.path[..], std::slice::from_ref(&name)].concat();
                let root = self.modules.0.entry(Vec::new()).or_default();
                root.imports.insert(name.clone(), path);
            }
            self.module().items.insert(name);
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.path.push(item.ident.to_string());
        if let Some((_, items)) = &item.content {
            self.module();
            items.iter().for_each(|item| self.visit_item(item));
        } else {
            let stem = self.path.join("/");
            self.visit_file_at([format!("{stem}.rs"), format!("{stem}/mod.rs")]);
        }
        self.path.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.import(&item.tree, &[]);
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        if !matches!(item, syn::ImplItem::Fn(method) if is_test(&method.attrs)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter().map(|segment| segment.ident.to_string());
        self.module().paths.insert(segments.collect());
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // `pub(super)` names no dependency.
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }
}

fn describe(item: &Item) -> (&[Attribute], Option<&Ident>) {
    macro_rules! describe {
        ($($named:ident)*, $($unnamed:ident)*) => {
            match item {
                $(Item::$named(item) => (&item.attrs, Some(&item.ident)),)*
                $(Item::$unnamed(item) => (&item.attrs, None),)*
                Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
                Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
                _ => (&[], None),
            }
        };
    }
    describe!(Const Enum Static Struct Trait Type Union, Impl Mod Use)
}

/// Whether the code is compiled for tests only: `#[cfg(test)]`, alone or within `all`.
fn is_test(attributes: &[Attribute]) -> bool {
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.filter_map(|attribute| attribute.parse_args().ok()).any(|meta| needs_test(&meta))
}

fn needs_test(condition: &Meta) -> bool {
    let Meta::List(list) = condition else { return condition.path().is_ident("test") };
    let inner = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    list.path.is_ident("all") && inner.is_ok_and(|inner| inner.iter().any(needs_test))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Vec<String> {
        cycles(&files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }

    #[test]
    fn modules_that_depend_one_way_are_no_cycle() {
        let found = of(&[
            ("lib.rs", "mod a; mod b; pub use b::B; fn f() { a::f(); }"),
            ("a.rs", "use crate::B; use bytes::Bytes; pub fn f() -> B { Bytes::new(); B }"),
            ("b.rs", "pub struct B; impl B { fn b(self) -> Self { Self } }"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn a_cycle_through_a_re_export_names_the_modules_and_the_imports() {
        let found = of(&[
            ("lib.rs", "mod a; mod b; pub use b::B as Renamed;"),
            ("a.rs", "use crate::Renamed; pub fn f() {}"),
            ("b.rs", "pub struct B; fn g() { crate::a::f() }"),
        ]);
        assert_eq!(
            found,
            [
                "in crate, a → b: crate::a names crate::Renamed",
                "in crate, b → a: crate::b names crate::a::f",
            ]
        );
    }

    #[test]
    fn a_cycle_between_nested_modules_is_found_where_it_is() {
        let found = of(&[
            ("lib.rs", "mod outer;"),
            ("outer/mod.rs", "mod a; pub(super) mod b { pub(super) use super::a::A; pub mod c; }"),
            ("outer/a.rs", "pub struct A; fn f() { super::b::c::C; }"),
            ("outer/b/c.rs", "pub struct C; fn f(a: super::A) {}"),
        ]);
        assert_eq!(
            found,
            [
                "in crate::outer, a → b: crate::outer::a names super::b::c::C",
                "in crate::outer, b → a: crate::outer::b names super::a::A; crate::outer::b::c names super::A",
            ]
        );
    }

    #[test]
    fn a_longer_cycle_is_found_through_globs_macros_and_imported_modules() {
        let found = of(&[
            ("lib.rs", "mod a; mod b; mod c; mod names { pub use crate::b::*; }"),
            ("a.rs", "use crate::names; fn f() { names::g(); } #[macro_export] macro_rules! m {}"),
            ("b.rs", "pub fn g() { tokio::select! { _ = later() => { crate::c::h(1) } } }"),
            ("c.rs", "pub fn h() { crate::m!(); }"),
        ]);
        let found: Vec<_> = found.iter().filter_map(|text| text.split(": ").next()).collect();
        let expected = ["a → b", "a → names", "b → c", "c → a", "names → b"];
        assert_eq!(found, expected.map(|edge| format!("in crate, {edge}")));
    }

    #[test]
    fn code_of_tests_is_left_out() {
        let b = "pub struct B; #[cfg(test)] use crate::a; #[cfg(not(test))] struct C; \
                 impl B { #[cfg(test)] fn f() { crate::a::f() } }";
        let found = of(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B; #[cfg(all(feature = \"x\", test))] mod tests;"),
            ("b.rs", b),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
