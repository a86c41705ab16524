//! `#[derive(Module)]` and `#[derive(Nested)]`: a struct's parameters and tensors are found by its fields.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Code;
use quote::{format_ident, quote, quote_spanned};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Field, Fields, Ident, LitStr, Token, parse_macro_input};

/// Makes a struct a module whose children are its fields, under the fields' names.
///
/// Every field is a module itself: a layer, a `Param`, a `Buffer`, another module, or a `Vec`, `Option`, `BTreeMap` or
/// `Unit` of them. `#[module(skip)]` leaves a field out (a number, a shared table); `#[module(name = "h")]` gives it another name
/// in paths, `#[module(name = "")]` none.
#[proc_macro_derive(Module, attributes(module))]
pub fn module(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    module_of(input).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// Makes a struct or an enum a value that holds tensors: every field is one itself.
#[proc_macro_derive(Nested)]
pub fn nested(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    nested_of(input).unwrap_or_else(|error| error.to_compile_error()).into()
}

fn module_of(input: DeriveInput) -> syn::Result<Code> {
    let Data::Struct(data) = &input.data else {
        return Err(syn::Error::new_spanned(&input.ident, "Module can be derived for structs"));
    };
    let mut children = Vec::new();
    for (index, field) in data.fields.iter().enumerate() {
        let Spelling { skip, name } = Spelling::of(&field.attrs)?;
        if skip {
            continue;
        }
        let member = member(index, field);
        let name = name.unwrap_or_else(|| match &field.ident {
            Some(ident) => ident.to_string().trim_start_matches("r#").to_owned(),
            None => index.to_string(),
        });
        // At the field's type, where the compiler then says that it is not a module.
        let at = field.ty.span();
        children.push(quote_spanned! { at=> visitor.child(#name, &self.#member); });
    }
    let (own, (generics, types, bounds)) = (&input.ident, input.generics.split_for_impl());
    Ok(quote! {
        impl #generics ::oarlock::nn::Module for #own #types #bounds {
            fn visit(&self, visitor: &mut dyn ::oarlock::nn::Visitor) {
                #(#children)*
            }
        }
    })
}

/// What stands in `#[module(..)]`.
#[derive(Default)]
struct Spelling {
    skip: bool,
    name: Option<String>,
}

impl Spelling {
    fn of(attributes: &[Attribute]) -> syn::Result<Spelling> {
        let mut found = Spelling::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("module")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("skip") {
                    found.skip = true;
                    return Ok(());
                }
                if meta.path.is_ident("name") {
                    found.name = Some(meta.value()?.parse::<LitStr>()?.value());
                    return Ok(());
                }
                Err(meta.error("here stands `skip` or `name = \"..\"`"))
            })?;
        }
        Ok(found)
    }
}

fn member(index: usize, field: &Field) -> Code {
    match &field.ident {
        Some(ident) => quote! { #ident },
        None => {
            let index = syn::Index::from(index);
            quote! { #index }
        }
    }
}

fn nested_of(input: DeriveInput) -> syn::Result<Code> {
    let own = &input.ident;
    let arms: Vec<Code> = match &input.data {
        Data::Struct(data) => vec![arm(quote! { #own }, &data.fields)],
        Data::Enum(data) => {
            let arm = |variant: &syn::Variant| {
                let name = &variant.ident;
                arm(quote! { #own::#name }, &variant.fields)
            };
            data.variants.iter().map(arm).collect()
        }
        Data::Union(_) => return Err(syn::Error::new_spanned(own, "Nested cannot be derived for unions")),
    };
    let (pack, unpack) = packing(own, &input.data);
    let mut bounded = input.generics.clone();
    for parameter in bounded.type_params_mut() {
        parameter.bounds.push(syn::parse_quote!(::oarlock::Nested));
    }
    let (generics, _, bounds) = bounded.split_for_impl();
    let (_, types, _) = input.generics.split_for_impl();
    Ok(quote! {
        impl #generics ::oarlock::Nested for #own #types #bounds {
            fn map_tensors(
                &self,
                f: &mut dyn FnMut(&::oarlock::Tensor) -> ::oarlock::Result<::oarlock::Tensor>,
            ) -> ::oarlock::Result<Self> {
                Ok(match self { #(#arms)* })
            }

            fn pack(&self, parcel: &mut ::oarlock::Parcel) -> ::oarlock::Result<()> {
                #pack
            }

            fn unpack(parcel: &mut ::oarlock::Parcel) -> ::oarlock::Result<Self> {
                #unpack
            }
        }
    })
}

/// How a value is written for another rank and read there: the number of its variant, then field after field.
fn packing(own: &Ident, data: &Data) -> (Code, Code) {
    let shapes: Vec<(Code, &Fields)> = match data {
        Data::Struct(data) => vec![(quote! { #own }, &data.fields)],
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| {
                let name = &variant.ident;
                (quote! { #own::#name }, &variant.fields)
            })
            .collect(),
        Data::Union(_) => Vec::new(),
    };
    let (mut packs, mut unpacks) = (Vec::new(), Vec::new());
    for (number, (path, fields)) in shapes.iter().enumerate() {
        let names = names(fields);
        let (pattern, list) = (whole(path, fields, &names), names.iter());
        packs.push(quote! {
            #pattern => {
                parcel.put_len(#number);
                #(::oarlock::Nested::pack(#list, parcel)?;)*
            }
        });
        let list = names.iter();
        unpacks.push(quote! {
            #number => {
                #(let #list = ::oarlock::Nested::unpack(parcel)?;)*
                #pattern
            }
        });
    }
    let pack = quote! {
        match self { #(#packs)* }
        Ok(())
    };
    let unpack = quote! {
        Ok(match parcel.take_len()? {
            #(#unpacks)*
            _ => return Err(::oarlock::Error::Usage(
                "a value came from another rank in another form than expected".to_owned()
            )),
        })
    };
    (pack, unpack)
}

/// The fields as variables.
fn names(fields: &Fields) -> Punctuated<Ident, Token![,]> {
    let name = |(index, field): (usize, &Field)| {
        field.ident.clone().unwrap_or_else(|| format_ident!("field_{index}"))
    };
    fields.iter().enumerate().map(name).collect()
}

/// A shape, as a pattern and as an expression.
fn whole(path: &Code, fields: &Fields, names: &Punctuated<Ident, Token![,]>) -> Code {
    match fields {
        Fields::Named(_) => quote! { #path { #names } },
        Fields::Unnamed(_) => quote! { #path(#names) },
        Fields::Unit => quote! { #path },
    }
}

/// One shape of a value: its fields taken apart, mapped, and put together.
fn arm(path: Code, fields: &Fields) -> Code {
    let names = names(fields);
    let mapped = names.iter().map(|name| quote! { let #name = ::oarlock::Nested::map_tensors(#name, f)?; });
    let whole = whole(&path, fields, &names);
    quote! { #whole => { #(#mapped)* #whole } }
}
